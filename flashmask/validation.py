# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every rule on the arguments.

The rules look at metadata only (types, dtypes, shapes, devices), never at values of tensors, so
they serve real calls, fake tensors and tracing alike. The C++ kernels (csrc/check.h) repeat the
rules of the ops in the order of ``check_forward``, ``check_backward`` and ``check_plan``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashmask.plan_shape import TILE, plan_shape
from flashmask.sentences import dtype_name, fail

MAX_HEAD_DIM = 256
MAX_SEQLEN = 2**31 - 1 - TILE  # lengths rounded up to a tile must fit into int32

FLOAT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

_QUERY_LAYOUT = "[batch, seqlen_q, heads_q, head_dim]"
_KEY_LAYOUT = "[batch, seqlen_k, heads_k, head_dim]"
_VALUE_LAYOUT = "[batch, seqlen_k, heads_k, head_dim_v]"
_BOUNDS_LAYOUT = "[batch, heads, seqlen_k, bounds]"
_BLOCKS_LAYOUT = "[batch, heads, rows, columns]"


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


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
        if tensor.layout != torch.strided:
            fail("layout", name=name, value=str(tensor.layout).removeprefix("torch."))
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
