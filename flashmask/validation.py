# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every rule on the arguments and the one sentence which says what broke it.

The rules look at metadata only (types, dtypes, shapes, devices), never at values of tensors, so
they serve real calls, fake tensors and tracing alike. The C++ kernels repeat the rules of
``OP_SENTENCES`` in the order of ``check_forward`` and ``check_backward`` and raise
``RuntimeError`` with the same text, so keep each sentence a template which a few string insertions
can fill. A sentence names the argument, the rule, the value and the fix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

TILE = 128
MAX_HEAD_DIM = 256
MAX_SEQLEN = 2**31 - 1 - TILE  # lengths rounded up to a tile must fit into int32

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

PLAN_HEADER = 16
PLAN_UNIT = 16

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

_QUERY_LAYOUT = "[batch, seqlen_q, heads_q, head_dim]"
_KEY_LAYOUT = "[batch, seqlen_k, heads_k, head_dim]"
_VALUE_LAYOUT = "[batch, seqlen_k, heads_k, head_dim_v]"
_BOUNDS_LAYOUT = "[batch, heads, seqlen_k, bounds]"
_BLOCKS_LAYOUT = "[batch, heads, rows, columns]"


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


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def plan_length(seqlen_q: int, seqlen_k: int) -> int:
    """Number of int32 elements which a plan has per mask head.

    A header; four lowered bounds per key column, padded to whole tiles; their minima and maxima per
    tile and per 16 columns; the row and the column tasks, each with a cost. The same as
    ``PlanLayout`` in csrc/plan.h. Depends on the lengths only, and works on symbolic sizes.
    """
    padded = (seqlen_k + TILE - 1) // TILE * TILE
    rows = (seqlen_q + TILE - 1) // TILE
    columns = padded // TILE
    summaries = 8 * columns + 8 * (padded // PLAN_UNIT)
    return PLAN_HEADER + 4 * padded + summaries + 2 * rows + 2 * columns


def plan_shape(
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    seqlen_q: int,
    seqlen_k: int,
) -> list[int]:
    """Shape ``[Bm, Hm, L]`` of a plan: the larger batch and head count of its parts, else 1."""
    batch, heads = 1, 1
    for part in (startend_row_indices, block_mask):
        if part is not None:
            # A batch of 0 stays 0: there is nothing to plan.
            batch = part.shape[0] if part.shape[0] != 1 else batch
            heads = part.shape[1] if part.shape[1] != 1 else heads
    if startend_row_indices is not None and block_mask is not None:
        heads = max(startend_row_indices.shape[1], block_mask.shape[1])
    return [batch, heads, plan_length(seqlen_q, seqlen_k)]


def _check_rank(name: str, tensor: Tensor, layout: str) -> None:
    if tensor.dim() != 4:
        fail("rank", name=name, layout=layout, shape=_shape(tensor))


def _check_device(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.device != query.device:
        fail("device", name=name, expected=query.device, device=tensor.device)


def _check_same_dtype(name: str, tensor: Tensor, query: Tensor) -> None:
    if tensor.dtype != query.dtype:
        fail(
            "same_dtype",
            name=name,
            expected=dtype_name(query.dtype),
            dtype=dtype_name(tensor.dtype),
        )


def _check_int32(name: str, tensor: Tensor) -> None:
    if tensor.dtype != torch.int32:
        fail("int32", name=name, dtype=dtype_name(tensor.dtype))


def _check_batch(name: str, tensor: Tensor, batch: int) -> None:
    if tensor.shape[0] != batch:
        fail("batch", name=name, expected=batch, shape=_shape(tensor))


def _check_seqlen(name: str, tensor: Tensor) -> None:
    # A symbolic length must not get a guard: it would forbid exporting with an unlimited dimension.
    length = tensor.shape[1]
    if isinstance(length, int) and length > MAX_SEQLEN:
        fail("seqlen", name=name, shape=_shape(tensor))


def check_qkv(query: Tensor, key: Tensor, value: Tensor, *, allow_float64: bool = False) -> None:
    """Ranks, dtypes, devices and shapes of the three inputs."""
    _check_rank("query", query, _QUERY_LAYOUT)
    _check_rank("key", key, _KEY_LAYOUT)
    _check_rank("value", value, _VALUE_LAYOUT)
    if query.dtype not in FLOAT_DTYPES and not (allow_float64 and query.dtype == torch.float64):
        fail("dtype", dtype=dtype_name(query.dtype))
    for name, tensor in (("key", key), ("value", value)):
        _check_same_dtype(name, tensor, query)
        _check_device(name, tensor, query)
        _check_batch(name, tensor, query.shape[0])
    if not 1 <= query.shape[3] <= MAX_HEAD_DIM:
        fail("head_dim", name="query", shape=_shape(query))
    if key.shape[3] != query.shape[3]:
        fail("key_head_dim", expected=query.shape[3], shape=_shape(key))
    if not 1 <= value.shape[3] <= MAX_HEAD_DIM:
        fail("head_dim", name="value", shape=_shape(value))
    if value.shape[1] != key.shape[1]:
        fail("value_seqlen", expected=key.shape[1], shape=_shape(value))
    if value.shape[2] != key.shape[2]:
        fail("value_heads", expected=key.shape[2], shape=_shape(value))
    heads_q, heads_k = query.shape[2], key.shape[2]
    if heads_q % heads_k != 0 if heads_k != 0 else heads_q != 0:
        fail("head_ratio", expected=heads_k, shape=_shape(query))
    _check_seqlen("query", query)
    _check_seqlen("key", key)


def _check_mask_heads(name: str, tensor: Tensor, heads_q: int, heads_k: int) -> None:
    if tensor.shape[1] not in (1, heads_k, heads_q):
        fail("mask_heads", name=name, heads_k=heads_k, heads_q=heads_q, shape=_shape(tensor))


def check_bounds_count(startend_row_indices: Tensor, causal: bool) -> None:
    """Number of bounds per column and its agreement with ``causal``."""
    count = startend_row_indices.shape[3]
    if count not in (1, 2, 4):
        fail("bounds_count", shape=_shape(startend_row_indices))
    if causal and count == 4:
        fail("bounds_causal", shape=_shape(startend_row_indices))
    if not causal and count == 1:
        fail("bounds_not_causal", shape=_shape(startend_row_indices))


def check_mask(
    query: Tensor,
    key: Tensor,
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    plan: Tensor | None,
    causal: bool,
) -> None:
    """Bounds, block mask and plan, given that query and key are right already."""
    batch, seqlen_q, heads_q, _ = query.shape
    _, seqlen_k, heads_k, _ = key.shape
    if startend_row_indices is not None:
        name = "startend_row_indices"
        _check_rank(name, startend_row_indices, _BOUNDS_LAYOUT)
        _check_int32(name, startend_row_indices)
        _check_device(name, startend_row_indices, query)
        _check_batch(name, startend_row_indices, batch)
        _check_mask_heads(name, startend_row_indices, heads_q, heads_k)
        if startend_row_indices.shape[2] != seqlen_k:
            fail("bounds_seqlen", expected=seqlen_k, shape=_shape(startend_row_indices))
        check_bounds_count(startend_row_indices, causal)
    if block_mask is not None:
        _check_rank("block_mask", block_mask, _BLOCKS_LAYOUT)
        _check_int32("block_mask", block_mask)
        _check_device("block_mask", block_mask, query)
        _check_batch("block_mask", block_mask, batch)
        _check_mask_heads("block_mask", block_mask, heads_q, heads_k)
        check_block_shape(block_mask, seqlen_q, seqlen_k)
    if plan is not None:
        _check_int32("plan", plan)
        _check_device("plan", plan, query)
        expected = plan_shape(startend_row_indices, block_mask, seqlen_q, seqlen_k)
        # One plan serves a whole batch when the mask is the same for all of it.
        if (
            plan.dim() != 3
            or plan.shape[0] not in (1, expected[0])
            or _shape(plan)[1:] != expected[1:]
        ):
            fail("plan_shape", expected=expected, shape=_shape(plan))


def check_block_shape(block_mask: Tensor, seqlen_q: int, seqlen_k: int) -> None:
    """One value per tile of 128 rows and 128 columns."""
    rows, columns = (seqlen_q + TILE - 1) // TILE, (seqlen_k + TILE - 1) // TILE
    if block_mask.shape[2] != rows or block_mask.shape[3] != columns:
        fail("block_shape", rows=rows, columns=columns, shape=_shape(block_mask))


def check_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    plan: Tensor | None,
    causal: bool,
    softmax_scale: float,
    *,
    allow_float64: bool = False,
) -> None:
    """All rules of the forward ops, in the order in which the C++ kernel checks them.

    Args:
        query: ``[B, Sq, Hq, D]`` float32, bfloat16 or float16.
        key: ``[B, Sk, Hk, D]`` in the dtype of query.
        value: ``[B, Sk, Hk, Dv]`` in the dtype of query.
        startend_row_indices: ``[B, 1|Hk|Hq, Sk, 1|2|4]`` int32.
        block_mask: ``[B, 1|Hk|Hq, ceil(Sq/128), ceil(Sk/128)]`` int32.
        plan: ``[1|B, Hm, L]`` int32, see :func:`plan_shape`.
        causal: whether the bottom-right aligned triangle is hidden, too.
        softmax_scale: factor of the scores.
        allow_float64: the reference accepts float64, which makes it its own oracle.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape, a device or a value is wrong.
    """
    check_qkv(query, key, value, allow_float64=allow_float64)
    check_mask(query, key, startend_row_indices, block_mask, plan, causal)
    if not math.isfinite(softmax_scale):
        fail("scale_finite", value=softmax_scale)


def check_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    plan: Tensor | None,
    causal: bool,
    softmax_scale: float,
    *,
    allow_float64: bool = False,
) -> None:
    """All rules of the backward ops: those of forward, then those on its results.

    Args:
        grad_out: ``[B, Sq, Hq, Dv]`` in the dtype of query.
        grad_lse: ``[B, Hq, Sq]`` float32 or None.
        out: ``[B, Sq, Hq, Dv]`` in the dtype of query.
        lse: ``[B, Hq, Sq]`` float32.

    The others are those of :func:`check_forward`.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape, a device or a value is wrong.
    """
    check_forward(
        query,
        key,
        value,
        startend_row_indices,
        block_mask,
        plan,
        causal,
        softmax_scale,
        allow_float64=allow_float64,
    )
    out_shape = [query.shape[0], query.shape[1], query.shape[2], value.shape[3]]
    lse_shape = [query.shape[0], query.shape[2], query.shape[1]]
    lse_dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    for name, tensor in (("grad_out", grad_out), ("out", out)):
        _check_same_dtype(name, tensor, query)
        _check_device(name, tensor, query)
        if _shape(tensor) != out_shape:
            fail("forward_shape", name=name, expected=out_shape, shape=_shape(tensor))
    for name, maybe in (("lse", lse), ("grad_lse", grad_lse)):
        if maybe is None:
            continue
        if maybe.dtype != lse_dtype:
            fail("float32", name=name, dtype=dtype_name(maybe.dtype))
        _check_device(name, maybe, query)
        if _shape(maybe) != lse_shape:
            fail("forward_shape", name=name, expected=lse_shape, shape=_shape(maybe))


def check_plan(
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    seqlen_q: int,
    seqlen_k: int,
    causal: bool,
) -> None:
    """All rules of the plan op, which does not know the heads of query and key.

    Raises:
        TypeError: a dtype is wrong.
        ValueError: a shape, a device or a value is wrong.
    """
    for name, length in (("seqlen_q", seqlen_q), ("seqlen_k", seqlen_k)):
        if isinstance(length, int) and not 0 <= length <= MAX_SEQLEN:
            fail("plan_seqlen", name=name, value=length)
    if startend_row_indices is not None:
        _check_rank("startend_row_indices", startend_row_indices, _BOUNDS_LAYOUT)
        _check_int32("startend_row_indices", startend_row_indices)
        if startend_row_indices.shape[2] != seqlen_k:
            fail("bounds_seqlen", expected=seqlen_k, shape=_shape(startend_row_indices))
        check_bounds_count(startend_row_indices, causal)
    if block_mask is not None:
        _check_rank("block_mask", block_mask, _BLOCKS_LAYOUT)
        _check_int32("block_mask", block_mask)
        check_block_shape(block_mask, seqlen_q, seqlen_k)
    if startend_row_indices is not None and block_mask is not None:
        if block_mask.device != startend_row_indices.device:
            fail("plan_device", expected=startend_row_indices.device, device=block_mask.device)
        ours, theirs = startend_row_indices.shape, block_mask.shape
        if ours[0] != theirs[0] and ours[0] != 1 and theirs[0] != 1:
            fail("plan_batch", expected=ours[0], shape=_shape(block_mask))
        few, many = (ours[1], theirs[1]) if ours[1] < theirs[1] else (theirs[1], ours[1])
        if few != many and (few == 0 or many % few != 0):
            fail("plan_heads", expected=ours[1], shape=_shape(block_mask))


def window_pair(window_size: int | Sequence[int]) -> tuple[int, int]:
    """``(left, right)`` keys of a window, which may be given as one int for both.

    Raises:
        TypeError: neither an int nor a pair of ints.
        ValueError: a side is negative.
    """
    pair = (window_size, window_size) if isinstance(window_size, int) else window_size
    if (
        isinstance(window_size, bool)
        or not isinstance(pair, (tuple, list))
        or len(pair) != 2
        or not all(isinstance(side, int) and not isinstance(side, bool) for side in pair)
    ):
        fail("window_type", value=window_size)
    left, right = pair
    if left < 0 or right < 0:
        fail("window_negative", value=window_size)
    return left, right


def check_call(
    query: Any,
    key: Any,
    value: Any,
    startend_row_indices: Any,
    *,
    causal: Any,
    window_size: Any,
    block_mask: Any,
    softmax_scale: Any,
    dropout: Any,
    mask: Any = None,
) -> None:
    """Rules on the arguments of ``flashmask_attention`` which no op sees, in their fixed order.

    Args:
        mask: the FlashMask which was passed, if any; ``startend_row_indices`` then is its tensor.

    Raises:
        TypeError: an argument has a wrong type.
        ValueError: an argument has a wrong value.
        NotImplementedError: ``dropout`` is not 0.
    """
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if not isinstance(tensor, Tensor):
            fail("tensor", name=name, value=type(tensor).__name__)
    if startend_row_indices is not None and not isinstance(startend_row_indices, Tensor):
        fail("mask_type", value=type(startend_row_indices).__name__)
    if block_mask is not None and not isinstance(block_mask, Tensor):
        fail("tensor", name="block_mask", value=type(block_mask).__name__)
    if not isinstance(causal, bool):
        fail("causal_type", value=type(causal).__name__)
    if dropout != 0:
        fail("dropout", value=dropout)
    if softmax_scale is not None and not isinstance(softmax_scale, (float, int)):
        fail("scale_type", value=type(softmax_scale).__name__)
    if window_size is not None:
        if startend_row_indices is not None or mask is not None:
            fail("window_and_mask", value=window_size)
        window_pair(window_size)
    if mask is not None:
        check_flash_mask(mask, query, key, causal, block_mask)


def check_flash_mask(
    mask: Any, query: Tensor, key: Tensor, causal: bool, block_mask: Tensor | None
) -> None:
    """A FlashMask against the other arguments of the call."""
    if causal and not mask.causal:
        fail("mask_causal", expected=mask.causal, value=causal)
    if block_mask is not None:
        fail("mask_blocks")
    lengths = [query.shape[1], key.shape[1]] if query.dim() == key.dim() == 4 else None
    made_for = [mask.seqlen_q, mask.seqlen_k]
    if lengths is not None and made_for != lengths:
        fail("mask_seqlen", expected=lengths, value=made_for)
