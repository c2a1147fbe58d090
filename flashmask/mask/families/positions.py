# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks that depend on positions only: full, causal, windows, sinks, prefixes, frames.

Keys have positions 0 .. seqlen-1. Queries have the last seqlen_q of these positions (all of them by
default), so that decoding with a key cache is `seqlen_q=1`.
"""

from __future__ import annotations

import torch

from flashmask.mask.families.columns import (
    Device,
    Lengths,
    limited,
    per_batch,
    positions,
    row_count,
    row_of,
    stack_columns,
)
from flashmask.mask.flash_mask import FlashMask


def full(seqlen: int, *, seqlen_q: int | None = None, device: Device = None) -> FlashMask:
    """Every row sees every key.

    Args:
        seqlen: number of keys.
        seqlen_q: number of rows, `seqlen` by default.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 2]`.
    """
    rows = row_count(seqlen, seqlen_q)
    zero = torch.zeros(seqlen, dtype=torch.int32, device=device)
    return stack_columns(zero + rows, zero, causal=False, seqlen_q=rows)


def causal(seqlen: int, *, seqlen_q: int | None = None, device: Device = None) -> FlashMask:
    """A row sees its own position and those before it.

    Args:
        seqlen: number of keys.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions. If there are
            more rows than keys, the first ones come before all keys and see nothing.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 1]`.
    """
    rows = row_count(seqlen, seqlen_q)
    lts = torch.full((seqlen,), rows, dtype=torch.int32, device=device)
    return stack_columns(lts, causal=True, seqlen_q=rows)


def sliding_window(
    seqlen: int,
    *,
    window: int | None = None,
    left: int | None = None,
    right: int | None = None,
    seqlen_q: int | None = None,
    device: Device = None,
) -> FlashMask:
    """A row sees the keys near its own position, either causally or to both sides.

    Give either `window`, or one or both of `left` and `right`. Note that `window=w` is
    `left=w-1, right=0`, and that Paddle's `window_size=w` with a causal mask is `window=w+1`.

    Args:
        seqlen: number of keys.
        window: causal; how many keys a row sees, its own included.
        left: two-sided; how many keys before its own a row sees, all of them if None.
        right: two-sided; how many keys after its own a row sees, all of them if None.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 1]` (window) or `[1, 1, seqlen, 2]` (left, right).

    Raises:
        ValueError: both ways or neither way were used, or a number is negative.
    """
    rows = row_count(seqlen, seqlen_q)
    if (window is None) == (left is None and right is None):
        raise ValueError(
            f"give either window, or left and/or right, but not both: "
            f"window={window}, left={left}, right={right}"
        )
    position, longest = positions(seqlen, device), max(rows, seqlen)
    if window is not None:
        window = limited("window", window, longest)
        return stack_columns(row_of(position + window, rows, seqlen), causal=True, seqlen_q=rows)
    lts, ute = torch.full_like(position, rows), torch.zeros_like(position)
    if left is not None:
        lts = row_of(position + limited("left", left, longest) + 1, rows, seqlen)
    if right is not None:
        ute = row_of(position - limited("right", right, longest), rows, seqlen)
    return stack_columns(lts, ute, causal=False, seqlen_q=rows)


def attention_sink(
    seqlen: int, *, sink: int, window: int, seqlen_q: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the first `sink` keys and the last `window` keys up to its own (StreamingLLM).

    Args:
        seqlen: number of keys.
        sink: number of keys at the beginning that every later row sees.
        window: how many keys a row sees besides, its own included.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 1]`.
    """
    rows = row_count(seqlen, seqlen_q)
    sink = limited("sink", sink, seqlen)
    window = limited("window", window, max(rows, seqlen))
    position = positions(seqlen, device)
    leaves_window = row_of(position + window, rows, seqlen)
    lts = torch.where(position < sink, rows, leaves_window)
    return stack_columns(lts, causal=True, seqlen_q=rows)


def global_sliding_window(
    seqlen: int,
    *,
    num_global: int,
    left: int,
    right: int,
    seqlen_q: int | None = None,
    device: Device = None,
) -> FlashMask:
    """The first tokens see all and are seen by all, the others see a window (Longformer, BigBird).

    Args:
        seqlen: number of keys.
        num_global: number of global tokens at the beginning.
        left: how many keys before its own a row sees.
        right: how many keys after its own a row sees.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 4]`.
    """
    rows = row_count(seqlen, seqlen_q)
    num_global = limited("num_global", num_global, seqlen)
    left = limited("left", left, max(rows, seqlen))
    right = limited("right", right, max(rows, seqlen))
    position = positions(seqlen, device)
    is_global = position < num_global
    lts = torch.where(is_global, rows, row_of(position + left + 1, rows, seqlen))
    lte = torch.full_like(lts, rows)
    uts = row_of(torch.full_like(position, num_global), rows, seqlen)
    ute = row_of(position - right, rows, seqlen)
    nothing_above = is_global | (ute <= uts)
    uts, ute = uts.masked_fill(nothing_above, 0), ute.masked_fill(nothing_above, 0)
    return stack_columns(lts, lte, uts, ute, causal=False, seqlen_q=rows)


def prefix_lm(
    seqlen: int, prefix: Lengths, *, seqlen_q: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the prefix and, besides, its own position and those before it (T5, UniLM).

    Args:
        seqlen: number of keys.
        prefix: number of keys in the prefix; one number, or one per batch entry.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, seqlen, 2]`.
    """
    rows = row_count(seqlen, seqlen_q)
    in_prefix = positions(seqlen, device) < per_batch("prefix", prefix, seqlen, device)
    ute = row_of(positions(seqlen, device), rows, seqlen)
    ute = torch.where(in_prefix, 0, ute)
    return stack_columns(torch.full_like(ute, rows), ute, causal=False, seqlen_q=rows)


def block_causal(
    seqlen: int, *, block: int, seqlen_q: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the whole block of its own position and all blocks before it (video frames).

    Args:
        seqlen: number of keys.
        block: tokens per block (per frame); the last block may be shorter.
        seqlen_q: number of rows, `seqlen` by default; they have the last positions.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 2]`.
    """
    rows = row_count(seqlen, seqlen_q)
    block = limited("block", block, seqlen, minimum=1)
    position = positions(seqlen, device)
    ute = row_of(position // block * block, rows, seqlen)
    return stack_columns(torch.full_like(ute, rows), ute, causal=False, seqlen_q=rows)
