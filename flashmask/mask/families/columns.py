# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What all builders share: columns of bounds become a mask, and plain numbers become columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from flashmask.mask.checks import check_count
from flashmask.mask.flash_mask import FlashMask

Device = torch.device | str | None
Lengths = int | Sequence[int] | Tensor


def stack_columns(*bounds: Tensor, causal: bool, seqlen_q: int) -> FlashMask:
    """Return the mask whose bounds are these columns.

    Args:
        bounds: one tensor per bound, `[Sk]`, `[B, Sk]` or `[B, Hm, Sk]`, in the stored order.
        causal: whether the causal triangle is hidden as well.
        seqlen_q: Sq.
    """
    shape = torch.broadcast_shapes(*(bound.shape for bound in bounds))  # type: ignore[no-untyped-call]
    stacked = torch.stack([bound.expand(shape) for bound in bounds], dim=-1).to(torch.int32)
    if stacked.dim() == 2:
        stacked = stacked[None, None]
    elif stacked.dim() == 3:
        stacked = stacked[:, None]
    return FlashMask(stacked, causal=causal, seqlen_q=seqlen_q)


def row_of(position: Tensor, seqlen_q: int, seqlen_k: int) -> Tensor:
    """Return the row at which a position is reached, clamped to [0, Sq].

    Keys have positions 0 .. Sk-1 and the last row has the position of the last key, so row r has
    position r + Sk - Sq.
    """
    return (position - (seqlen_k - seqlen_q)).clamp(0, seqlen_q)


def row_count(seqlen: int, seqlen_q: int | None) -> int:
    """Check the two sizes of a builder and return the number of rows."""
    check_count("seqlen", seqlen)
    if seqlen_q is None:
        return seqlen
    check_count("seqlen_q", seqlen_q)
    return seqlen_q


def limited(name: str, value: int, seqlen: int, minimum: int = 0) -> int:
    """Check a number of tokens and return it, or `seqlen` if that is less.

    A longer one means the same, and could not be added to positions without overflow.

    Raises:
        TypeError: not an integer.
        ValueError: below `minimum`.
    """
    check_count(name, value, minimum)
    return min(value, max(seqlen, minimum))


def positions(seqlen: int, device: Device) -> Tensor:
    """Return 0 .. seqlen-1, int32."""
    return torch.arange(seqlen, dtype=torch.int32, device=device)


def per_batch(name: str, value: Lengths, maximum: int, device: Device) -> Tensor:
    """Return one number, or one per batch entry, as int32 `[B, 1]`.

    Raises:
        TypeError: not an integer or integers.
        ValueError: a number outside of [0, maximum].
    """
    if isinstance(value, Tensor) and torch.compiler.is_compiling():
        return value.reshape(-1, 1).to(device=device, dtype=torch.int32)
    numbers = value.reshape(-1).tolist() if isinstance(value, Tensor) else value
    numbers = list(numbers) if isinstance(numbers, Sequence) else [numbers]
    for number in numbers:
        check_count(name, number, 0, maximum)
    return torch.tensor(numbers, dtype=torch.int32, device=device).reshape(-1, 1)


def as_batch(name: str, value: Any, depth: int) -> list[Any]:
    """Return nested lists with a batch dimension in front: `depth` levels, or one more.

    Raises:
        ValueError: the nesting is neither `depth` nor `depth + 1`.
    """
    if hasattr(value, "tolist"):  # a tensor or an array
        value = value.tolist()
    levels, inner = 0, value
    while isinstance(inner, Sequence) and not isinstance(inner, str):
        levels += 1
        # The first entry that is not empty tells; an empty batch entry says nothing.
        inner = next((x for x in inner if not isinstance(x, Sequence) or len(x) > 0), None)
    if inner is None and levels < depth:
        levels = depth
    if levels not in (depth, depth + 1):
        raise ValueError(
            f"{name} must be nested {depth} deep, or {depth + 1} deep with one entry per batch "
            f"entry, but is {levels} deep"
        )
    return [value] if levels == depth else list(value)
