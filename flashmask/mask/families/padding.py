# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks that hide padding at one end of the sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask.mask.families.columns import (
    Device,
    Lengths,
    per_batch,
    positions,
    row_count,
    stack_columns,
)
from flashmask.mask.flash_mask import FlashMask


def key_padding(
    seqlen: int,
    valid: Lengths,
    *,
    causal: bool = True,
    seqlen_q: int | None = None,
    device: Device = None,
) -> FlashMask:
    """Padding at the end: the first `valid` keys count, the rest is hidden from every row.

    Args:
        seqlen: number of keys, padding included.
        valid: how many keys count; one number, or one per batch entry.
        causal: whether rows see only keys up to their own position.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, seqlen, 1]` (causal) or `[B, 1, seqlen, 2]`.
    """
    rows = row_count(seqlen, seqlen_q)
    keep = positions(seqlen, device) < per_batch("valid", valid, seqlen, device)
    return hide_columns(keep, causal=causal, seqlen_q=rows)


def left_padding(
    seqlen: int,
    padding: Lengths,
    *,
    causal: bool = True,
    seqlen_q: int | None = None,
    device: Device = None,
) -> FlashMask:
    """Padding at the beginning: the first `padding` keys are hidden from every row.

    With a causal mask the first `padding` rows then see nothing: their output is 0.

    Args:
        seqlen: number of keys, padding included.
        padding: how many keys are padding; one number, or one per batch entry.
        causal: whether rows see only keys up to their own position.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, seqlen, 1]` (causal) or `[B, 1, seqlen, 2]`.
    """
    rows = row_count(seqlen, seqlen_q)
    keep = positions(seqlen, device) >= per_batch("padding", padding, seqlen, device)
    return hide_columns(keep, causal=causal, seqlen_q=rows)


def hide_columns(keep: Tensor, *, causal: bool, seqlen_q: int) -> FlashMask:
    """Return the mask that hides whole columns: bool `keep`, `[B, Sk]` or `[B, Hm, Sk]`."""
    lts = torch.where(keep, seqlen_q, 0)
    if causal:
        return stack_columns(lts, causal=True, seqlen_q=seqlen_q)
    return stack_columns(lts, torch.zeros_like(lts), causal=False, seqlen_q=seqlen_q)
