# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``flashmask_attention``: normalizes its arguments, chooses an implementation and calls one op.

The op checks everything it is given, so a call in eager mode goes straight to it; only when
something refused does :mod:`flashmask.validation` look for the sentence which explains it. Under a
tracer the rules come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from flashmask import backends, ops, validation
from flashmask.mask.flash_mask import FlashMask


class _Implementation(NamedTuple):
    forward: Any  # the op
    straight: Any  # the same past the layers of the dispatcher, for plain tensors
    backward: Any
    autocast: bool  # whether torch has autocast for this type of device


# (backend, device type) -> ops; only usable choices get in, so a refusal is looked into again each
# time.
_chosen: dict[tuple[str | None, str], _Implementation] = {}


def flashmask_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | FlashMask | None = None,
    *,
    causal: bool = False,
    window_size: int | Sequence[int] | None = None,
    block_mask: Tensor | None = None,
    softmax_scale: float | None = None,
    return_softmax_lse: bool = False,
    dropout: float = 0.0,
    deterministic: bool = True,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention under a column-wise sparse mask, in memory linear in the sequence length.

    Each key column carries up to two intervals of query rows which must not see it::

        causal  bounds                  rows hidden from the column
        True    LTS                     r >= LTS, and the causal triangle
        True    LTS, LTE                LTS <= r < LTE, and the causal triangle
        False   LTS, UTE                r >= LTS, or r < UTE
        False   LTS, LTE, UTS, UTE      LTS <= r < LTE, or UTS <= r < UTE

    Bounds may be any int32; intervals are clamped to ``[0, Sq]`` and may come in either order. The
    causal triangle is aligned to the bottom right: the last row sees every column. A row which
    sees nothing has output 0, lse -inf and no gradients.

    Args:
        query: ``[B, Sq, Hq, D]`` float32, bfloat16 or float16, D up to 256, any strides.
        key: ``[B, Sk, Hk, D]`` in the dtype of query; Hq must be a multiple of Hk.
        value: ``[B, Sk, Hk, Dv]`` in the dtype of query; Dv up to 256 and not necessarily D.
        startend_row_indices: the bounds, ``[B or 1, 1|Hk|Hq, Sk, 1|2|4]`` int32; or a
            :class:`FlashMask`, which carries its plan, its causal flag and its block mask; or None
            for plain attention.
        causal: hide the upper triangle, too.
        window_size: instead of bounds: an int for both sides or ``(left, right)``. A row sees the
            key at its own position, ``left`` keys before it and, without ``causal``, ``right``
            after it.
        block_mask: ``[B or 1, 1|Hk|Hq, ceil(Sq/128), ceil(Sk/128)]`` int32; 0 drops a tile of 128
            x 128.
        softmax_scale: factor of the scores, by default ``1 / sqrt(D)``.
        return_softmax_lse: also return the logarithm of the softmax denominators.
        dropout: must be 0.
        deterministic: accepted for compatibility; results always are.
        backend: name of an implementation (see :mod:`flashmask.backends`), by default the one of
            the device.

    Returns:
        ``out [B, Sq, Hq, Dv]`` in the dtype of query, or ``(out, lse)`` with ``lse [B, Hq, Sq]``
        float32, natural logarithm, differentiable.

    Raises:
        TypeError: an argument has a wrong type or dtype.
        ValueError: an argument has a wrong shape, device or value.
        NotImplementedError: ``dropout`` is not 0.
        RuntimeError: the implementation is not usable here.

    Source: arXiv 2410.01359; argument names and layout follow PaddlePaddle's function of the same
    name.
    """
    call = (
        query,
        key,
        value,
        startend_row_indices,
        causal,
        window_size,
        block_mask,
        softmax_scale,
        dropout,
    )
    if torch.compiler.is_compiling():
        output = _traced(backend, *call)
    else:
        try:
            output = _eager(backend, *call)
        except Exception:
            _explain(backend, *call)
            raise
    return output if return_softmax_lse else output[0]


def _eager(
    backend: str | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | FlashMask | None,
    causal: bool,
    window_size: int | Sequence[int] | None,
    block_mask: Tensor | None,
    softmax_scale: float | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """The call in a hurry: rules which the op does not check itself, but no sentences."""
    plan = None
    if mask is None or isinstance(mask, Tensor):
        bounds = mask
    else:
        plan = _fresh_plan(mask)
        if (
            block_mask is not None
            or (causal and not mask.causal)
            or mask.seqlen_q != query.shape[1]
            or mask.seqlen_k != key.shape[1]
        ):
            raise _Refused
        bounds, block_mask, causal = mask.startend_row_indices, mask.block_mask, mask.causal
    if window_size is not None:
        if mask is not None:
            raise _Refused
        bounds = _window_bounds(query, key, causal, window_size)
    if dropout != 0 or (causal is not True and causal is not False):
        raise _Refused
    batch = query.shape[0]
    bounds = _expand_batch(bounds, batch)
    block_mask = _expand_batch(block_mask, batch)
    if softmax_scale is None:
        softmax_scale = query.shape[3] ** -0.5
    elif not isinstance(softmax_scale, (float, int)):
        raise _Refused
    device_type = query.device.type
    chosen = _chosen.get((backend, device_type)) or _choose(backend, device_type)
    args = (bounds, block_mask, plan, causal, softmax_scale)
    return _call(chosen, device_type, query, key, value, *args)


class _Refused(Exception):  # noqa: N818  # never leaves this file: _explain raises the real one
    pass


def _choose(backend: str | None, device_type: str) -> _Implementation:
    row = backends.select(backend, device_type)
    forward = getattr(torch.ops.flashmask, row.forward).default
    backward = getattr(torch.ops.flashmask, row.backward).default
    chosen = _Implementation(
        forward,
        ops.straight(forward),
        ops.straight_unless_recorded(backward),
        torch.amp.is_autocast_available(device_type),
    )
    _chosen[backend, device_type] = chosen
    return chosen


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) is Tensor or type(tensor) is torch.nn.Parameter


def _call(
    chosen: _Implementation,
    device_type: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
) -> tuple[Tensor, Tensor]:
    """Calls the op by the cheapest way which is right for the current mode of torch."""
    if (
        not (_is_plain(query) and _is_plain(key) and _is_plain(value))
        or torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack() != 0
        or forward_ad._current_level >= 0
    ):
        return chosen.forward(query, key, value, *rest)  # type: ignore[no-any-return]
    if chosen.autocast and torch.is_autocast_enabled(device_type):
        query, key, value = ops.autocast_inputs(device_type, query, key, value)
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    ):
        return ops.Attention.record(  # type: ignore[no-any-return]
            chosen.straight, chosen.backward, query, key, value, *rest
        )
    return chosen.straight(query, key, value, *rest)  # type: ignore[no-any-return]


def _traced(
    backend: str | None, query: Tensor, key: Tensor, value: Tensor, *call: Any
) -> tuple[Tensor, Tensor]:
    """The same call for a tracer: the rules of the call here, those of the op in its fake."""
    args = _normalize(query, key, value, *call)
    row = backends.select(backend, query.device.type)
    op = getattr(torch.ops.flashmask, row.forward).default
    return op(query, key, value, *args)  # type: ignore[no-any-return]


def _explain(backend: str | None, query: Tensor, key: Tensor, value: Tensor, *call: Any) -> None:
    """Raises the sentence of the first rule which a refused call breaks, if it breaks any."""
    args = _normalize(query, key, value, *call)
    device_type = query.device.type
    if torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type):
        query, key, value = ops.autocast_inputs(device_type, query, key, value)
    validation.check_forward(query, key, value, *args, allow_float64=backend == "reference")


def _normalize(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | FlashMask | None,
    causal: bool,
    window_size: int | Sequence[int] | None,
    block_mask: Tensor | None,
    softmax_scale: float | None,
    dropout: float,
) -> tuple[Tensor | None, Tensor | None, Tensor | None, bool, float]:
    """Checks the rules of the call; returns what the op takes after query, key and value."""
    flash_mask = mask if isinstance(mask, FlashMask) else None
    bounds: Any = mask if flash_mask is None else flash_mask.startend_row_indices
    validation.check_call(
        query,
        key,
        value,
        bounds,
        causal=causal,
        window_size=window_size,
        block_mask=block_mask,
        softmax_scale=softmax_scale,
        dropout=dropout,
        mask=flash_mask,
    )
    plan = None
    if flash_mask is not None:
        block_mask, plan, causal = flash_mask.block_mask, flash_mask.plan, flash_mask.causal
    if query.dim() == key.dim() == value.dim() == 4:  # else the op says what is wrong
        if window_size is not None:
            bounds = _window_bounds(query, key, causal, window_size)
        bounds = _expand_batch(bounds, query.shape[0])
        block_mask = _expand_batch(block_mask, query.shape[0])
    if softmax_scale is None:
        # A head dim is a static number of a model; int() makes a symbolic one static, too.
        softmax_scale = max(int(query.shape[-1]), 1) ** -0.5 if query.dim() else 1.0
    return bounds, block_mask, plan, causal, float(softmax_scale)


def _expand_batch(tensor: Tensor | None, batch: int) -> Tensor | None:
    if tensor is None or tensor.dim() != 4 or tensor.shape[0] != 1 or batch == 1:
        return tensor
    return tensor.expand(batch, -1, -1, -1)


def _window_bounds(
    query: Tensor, key: Tensor, causal: bool, window_size: int | Sequence[int]
) -> Tensor:
    """Bounds ``[B, 1, Sk, 1|2]`` of a window; row r stands at key position ``r + Sk - Sq``."""
    left, right = validation.window_pair(window_size)
    seqlen_q, seqlen_k = query.shape[1], key.shape[1]
    row = torch.arange(seqlen_k, dtype=torch.int32, device=query.device) - (seqlen_k - seqlen_q)
    # A window wider than everything is clamped before it is added, or it would overflow int32.
    last = row + (min(left, seqlen_k + seqlen_q) + 1)
    first = row - min(right, seqlen_k + seqlen_q)
    bounds = (last,) if causal else (last, first)
    return torch.stack([b.clamp(0, seqlen_q) for b in bounds], -1).expand(query.shape[0], 1, -1, -1)


def _fresh_plan(mask: FlashMask) -> Tensor | None:
    """The plan of a mask, which must not be older than the last edit of its tensors."""
    plan = mask.plan
    if plan is not None:
        mask.prepared()  # raises when the plan is stale, does nothing otherwise
    return plan
