# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One sentence for every broken rule: it names the argument, the rule, the value and the fix.

The C++ kernels raise ``RuntimeError`` with the texts of ``OP_SENTENCES`` (csrc/check.h; a test
compares them), so keep each a template which a few string insertions can fill.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

# Placeholders: {shape} prints as [2, 16, 4, 64], {dtype} as float32, {device} as cpu or cuda:0.
OP_SENTENCES: dict[str, tuple[type[Exception], str]] = {
    "rank": (
        ValueError,
        "{name} must have 4 dimensions {layout}, but has shape {shape}; reshape it.",
    ),
    "dtype": (
        TypeError,
        "query must be float32, bfloat16 or float16, but is {dtype}; "
        "convert it with .to(torch.bfloat16).",
    ),
    "same_dtype": (
        TypeError,
        "{name} must have the dtype of query, {expected}, but is {dtype}; "
        "convert it with .to(query.dtype).",
    ),
    "float32": (
        TypeError,
        "{name} must be float32, but is {dtype}; convert it with .to(torch.float32).",
    ),
    "int32": (
        TypeError,
        "{name} must be int32, but is {dtype}; convert it with .to(torch.int32).",
    ),
    "device": (
        ValueError,
        "{name} must be on the device of query, {expected}, but is on {device}; "
        "move it with .to(query.device).",
    ),
    "batch": (
        ValueError,
        "{name} must have the batch size of query, {expected}, but has shape {shape}; "
        "expand or slice its first dimension.",
    ),
    "head_dim": (
        ValueError,
        "{name} must have a head dim between 1 and 256, but has shape {shape}; "
        "split it into more heads.",
    ),
    "key_head_dim": (
        ValueError,
        "key must have the head dim of query, {expected}, but has shape {shape}; "
        "project both to one size.",
    ),
    "value_seqlen": (
        ValueError,
        "value must have the sequence length of key, {expected}, but has shape {shape}; "
        "slice or pad its dimension 1.",
    ),
    "value_heads": (
        ValueError,
        "value must have as many heads as key, {expected}, but has shape {shape}; "
        "expand or slice its dimension 2.",
    ),
    "head_ratio": (
        ValueError,
        "query must have a multiple of the heads of key, {expected}, but has shape {shape}; "
        "repeat the heads of key and value until they divide.",
    ),
    "seqlen": (
        ValueError,
        "{name} must have a sequence length of at most 2147483519, but has shape {shape}; "
        "split it into several calls.",
    ),
    "mask_heads": (
        ValueError,
        "{name} must have 1, {heads_k} (key) or {heads_q} (query) heads, but has shape {shape}; "
        "expand or slice its dimension 1.",
    ),
    "bounds_seqlen": (
        ValueError,
        "startend_row_indices must have one column per key, {expected}, but has shape {shape}; "
        "build the mask for this number of keys.",
    ),
    "bounds_count": (
        ValueError,
        "startend_row_indices must have 1, 2 or 4 bounds in its last dimension, "
        "but has shape {shape}; see the table of masks in docs/flashmask.md.",
    ),
    "bounds_causal": (
        ValueError,
        "startend_row_indices must have 1 or 2 bounds when causal=True, but has shape {shape}; "
        "pass causal=False and put the triangle into the bounds.",
    ),
    "bounds_not_causal": (
        ValueError,
        "startend_row_indices must have 2 or 4 bounds when causal=False, but has shape {shape}; "
        "pass causal=True or add the second bound.",
    ),
    "block_shape": (
        ValueError,
        "block_mask must have one value per 128 x 128 tile, [batch, heads, {rows}, {columns}], "
        "but has shape {shape}; build it for these sequence lengths.",
    ),
    "plan_shape": (
        ValueError,
        "plan must have shape {expected} for this mask and these sequence lengths, "
        "but has shape {shape}; make the FlashMask again.",
    ),
    "scale_finite": (
        ValueError,
        "softmax_scale must be finite, but is {value}; leave it out for 1 / sqrt(head_dim).",
    ),
    "forward_shape": (
        ValueError,
        "{name} must have shape {expected}, but has shape {shape}; "
        "pass the tensors which belong to this forward call.",
    ),
    "plan_seqlen": (
        ValueError,
        "{name} must be between 0 and 2147483519, but is {value}; pass the length of the sequence.",
    ),
    "plan_device": (
        ValueError,
        "block_mask must be on the device of startend_row_indices, {expected}, but is on {device}; "
        "move it with .to(startend_row_indices.device).",
    ),
    "plan_batch": (
        ValueError,
        "block_mask must have a batch size of 1 or that of startend_row_indices, {expected}, "
        "but has shape {shape}; expand or slice its first dimension.",
    ),
    "plan_heads": (
        ValueError,
        "block_mask must have heads which divide, or are divided by, those of "
        "startend_row_indices, {expected}, but has shape {shape}; expand or slice its dimension 1.",
    ),
}

CALL_SENTENCES: dict[str, tuple[type[Exception], str]] = {
    "tensor": (
        TypeError,
        "{name} must be a torch.Tensor, but is {value}; convert it with torch.as_tensor.",
    ),
    "layout": (
        TypeError,
        "{name} must be a dense tensor, but has the layout {value}; convert it with .to_dense().",
    ),
    "mask_type": (
        TypeError,
        "startend_row_indices must be a torch.Tensor, a FlashMask or None, but is {value}; "
        "convert it with torch.as_tensor.",
    ),
    "causal_type": (TypeError, "causal must be True or False, but is {value}; pass a bool."),
    "dropout": (
        NotImplementedError,
        "dropout must be 0, but is {value}; attention dropout is not supported, "
        "apply dropout to the output instead.",
    ),
    "scale_type": (
        TypeError,
        "softmax_scale must be a float or None, but is {value}; multiply query by the scale "
        "and pass softmax_scale=1.0 for one which is a tensor or needs a gradient.",
    ),
    "window_type": (
        TypeError,
        "window_size must be an int or a pair of ints, but is {value}; "
        "pass keys to the left or (left, right).",
    ),
    "window_negative": (
        ValueError,
        "window_size must not be negative, but is {value}; leave it out for no window.",
    ),
    "window_and_mask": (
        ValueError,
        "window_size must be None when startend_row_indices is given, but is {value}; "
        "put the window into the bounds (flashmask.masks has builders).",
    ),
    "mask_causal": (
        ValueError,
        "causal must be left out with a FlashMask made with causal={expected}, but is {value}; "
        "make the FlashMask with the flag you want.",
    ),
    "mask_blocks": (
        ValueError,
        "block_mask must be None when a FlashMask is given, but is a tensor; "
        "pass it to FlashMask instead.",
    ),
    "mask_seqlen": (
        ValueError,
        "startend_row_indices is a FlashMask which must match the sequence lengths of query and "
        "key, {expected}, but was made for {value}; make one for these lengths.",
    ),
}


def sentence(rule: str, **values: Any) -> str:
    """The text of ``rule`` with its placeholders filled."""
    return (OP_SENTENCES.get(rule) or CALL_SENTENCES[rule])[1].format(**values)


def fail(rule: str, **values: Any) -> NoReturn:
    """Raises the exception of ``rule`` with its sentence."""
    error = (OP_SENTENCES.get(rule) or CALL_SENTENCES[rule])[0]
    raise error(sentence(rule, **values))


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")
