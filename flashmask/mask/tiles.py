# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which tiles of the attention matrix need no work, plain work, or work with masking.

Integer tensors only; the specification of what the compiled planner does. Everything here is O(S)
in memory except `tile_classes`, which returns one byte per tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashmask.mask.dense import BLOCK, share_heads

SKIP, FULL, PARTIAL = 0, 1, 2
"""Classes of a tile: all hidden; all visible as far as the rule can tell; neither."""


class TileCounts(NamedTuple):
    """Number of tiles of each class, summed over batch and mask heads."""

    skip: int
    full: int
    partial: int


class ColumnBlocks(NamedTuple):
    """Smallest and largest bound of every block of columns, int32 `[B, Hm, 4, blocks]` each."""

    minimum: Tensor
    maximum: Tensor


def column_blocks(lowered: Tensor, tile_columns: int = BLOCK) -> ColumnBlocks:
    """Return minimum and maximum of the four bounds over every block of columns.

    Args:
        lowered: int32 `[B, Hm, 4, Sk]`, see `lower`.
        tile_columns: columns per block; the last block may have fewer.
    """
    # Repeating the last column fills the last block without changing its minimum and maximum.
    seqlen_k = lowered.shape[-1]
    if seqlen_k == 0:
        return ColumnBlocks(lowered, lowered)
    count = -(-seqlen_k // tile_columns)
    padded = torch.arange(count * tile_columns, device=lowered.device)
    filled = lowered[..., padded.clamp(max=seqlen_k - 1)]
    blocks = filled.reshape(*lowered.shape[:3], count, tile_columns)
    return ColumnBlocks(*torch.aminmax(blocks, dim=-1))


def tile_classes(
    lowered: Tensor,
    seqlen_q: int,
    block_mask: Tensor | None = None,
    *,
    tile_rows: int = BLOCK,
    tile_columns: int = BLOCK,
    row_blocks: Tensor | None = None,
) -> Tensor:
    """Return the class of every tile, SKIP, FULL or PARTIAL.

    With m0 the first row of a tile and m1 = min(m0 + tile_rows, Sq), a tile is skipped if one of
    the two intervals covers rows [m0, m1) in every column, and it is partial if one of them may
    touch these rows in some column. Both are decided from minimum and maximum only: sound, but a
    tile hidden by both intervals together is called partial.

    A block mask drops the tiles that it hides altogether, and makes partial those it hides in part
    (which happens only where tiles do not divide its blocks).

    Args:
        lowered: int32 `[B, Hm, 4, Sk]`, see `lower`.
        seqlen_q: Sq.
        block_mask: integer `[B, Hm, ceil(Sq/128), ceil(Sk/128)]` or None.
        tile_rows: rows per tile.
        tile_columns: columns per tile.
        row_blocks: int64 `[n]`, to return only these blocks of rows.

    Returns:
        uint8 `[B, Hm, ceil(Sq / tile_rows), ceil(Sk / tile_columns)]`.
    """
    (lts_min, lte_min, uts_min, ute_min), (lts_max, lte_max, uts_max, ute_max) = (
        bounds[..., None, :].unbind(2) for bounds in column_blocks(lowered, tile_columns)
    )
    if row_blocks is None:
        row_blocks = torch.arange(-(-seqlen_q // tile_rows), device=lowered.device)
    m0 = (row_blocks * tile_rows)[:, None]
    m1 = (m0 + tile_rows).clamp(max=seqlen_q)

    skip = ((m0 >= lts_max) & (m1 <= lte_min)) | ((m0 >= uts_max) & (m1 <= ute_min))
    partial = ((m0 < lte_max) & (m1 > lts_min)) | ((m0 < ute_max) & (m1 > uts_min))
    if block_mask is not None:
        columns = torch.arange(skip.shape[-1], device=lowered.device) * tile_columns
        column_end = (columns + tile_columns).clamp(max=lowered.shape[-1])
        dropped, kept = _dropped_and_kept(block_mask, (m0[:, 0], m1[:, 0]), (columns, column_end))
        heads = max(skip.shape[1], dropped.shape[1])
        skip = share_heads(skip, heads) | share_heads(~kept, heads)
        partial = share_heads(partial, heads) | share_heads(dropped, heads)
    classes = torch.where(partial, PARTIAL, FULL).masked_fill(skip, SKIP)
    return classes.to(torch.uint8)


def _dropped_and_kept(
    block_mask: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Whether any block that a tile touches is dropped, and whether any is kept, bool per tile."""
    keep = (block_mask != 0).to(torch.int64)
    # Summed-area table: the number of kept blocks above and to the left.
    table = torch.nn.functional.pad(keep.cumsum(-1).cumsum(-2), (1, 0, 1, 0))
    first_row, past_row = rows[0] // BLOCK, -(-rows[1] // BLOCK)
    first_column, past_column = columns[0] // BLOCK, -(-columns[1] // BLOCK)
    strips = table[..., past_row, :] - table[..., first_row, :]
    kept = strips[..., past_column] - strips[..., first_column]
    touched = (past_row - first_row)[:, None] * (past_column - first_column)
    return kept < touched, kept > 0


def tile_counts(
    lowered: Tensor,
    seqlen_q: int,
    block_mask: Tensor | None = None,
    *,
    tile_rows: int = BLOCK,
    tile_columns: int = BLOCK,
    max_elements: int = 2**24,
) -> TileCounts:
    """Return the number of tiles of each class; see `tile_classes`.

    Works through blocks of rows, so that no more than about `max_elements` tiles are in memory.
    """
    blocks = -(-seqlen_q // tile_rows)
    per_row_block = lowered[:, :, 0, ::tile_columns].numel() or 1
    step = max(1, max_elements // per_row_block)
    totals = torch.zeros(3, dtype=torch.int64)
    for start in range(0, blocks, step):
        classes = tile_classes(
            lowered,
            seqlen_q,
            block_mask,
            tile_rows=tile_rows,
            tile_columns=tile_columns,
            row_blocks=torch.arange(start, min(start + step, blocks), device=lowered.device),
        )
        totals += torch.bincount(classes.flatten(), minlength=3).cpu()
    return TileCounts(*totals.tolist())


def exact_visible_pairs(lowered: Tensor, seqlen_q: int, block_mask: Tensor | None = None) -> Tensor:
    """Return the number of visible (row, column) pairs of every mask head, int64 `[B, Hm]`.

    O(S); with a block mask O(S) per block of rows.
    """
    pairs = lowered.new_zeros(_leading(lowered, block_mask), dtype=torch.int64)
    for start, stop, clipped in _row_segments(lowered, seqlen_q, block_mask):
        lower, upper, both = _interval_lengths(clipped)
        pairs = pairs + ((stop - start) - (lower + upper - both)).sum(dim=-1, dtype=torch.int64)
    return pairs


def visible_keys_per_row(
    lowered: Tensor, seqlen_q: int, block_mask: Tensor | None = None
) -> Tensor:
    """Return how many keys every row sees, int64 `[B, Hm, Sq]`. Cost as `exact_visible_pairs`."""
    seqlen_k = lowered.shape[-1]
    parts = []
    for start, stop, clipped in _row_segments(lowered, seqlen_q, block_mask):
        hidden = clipped.new_zeros((*clipped.shape[:2], stop - start + 1), dtype=torch.int64)
        lts, lte, uts, ute = (clipped.long() - start).unbind(2)
        one = torch.ones_like(lts)
        # A row hidden by both intervals is counted by each, so their intersection is taken off.
        both_start, both_end = torch.maximum(lts, uts), torch.minimum(lte, ute)
        both = one.masked_fill(both_start >= both_end, 0)
        for first, past, weight in (
            (lts, lte, one),
            (uts, ute, one),
            (both_start, both_end, -both),
        ):
            hidden.scatter_add_(2, first, weight).scatter_add_(2, past, -weight)
        parts.append(seqlen_k - hidden.cumsum(dim=-1)[..., :-1])
    if not parts:
        return lowered.new_zeros((*_leading(lowered, block_mask), 0), dtype=torch.int64)
    return torch.cat(parts, dim=-1)


def _leading(lowered: Tensor, block_mask: Tensor | None) -> tuple[int, int]:
    """Return batch and number of mask heads of bounds and block mask together."""
    batch, heads = lowered.shape[:2]
    if block_mask is None:
        return batch, heads
    return max({batch, block_mask.shape[0]} - {1}, default=1), max(heads, block_mask.shape[1])


def _interval_lengths(lowered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lengths of the lower interval, the upper one, and what they have in common."""
    lts, lte, uts, ute = lowered.unbind(2)
    both = torch.minimum(lte, ute) - torch.maximum(lts, uts)
    return lte - lts, ute - uts, both.clamp_min(0)


def _row_segments(
    lowered: Tensor, seqlen_q: int, block_mask: Tensor | None
) -> Iterator[tuple[int, int, Tensor]]:
    """Yield (start, stop, bounds clipped to these rows) for rows that share one block mask row.

    A column that the block mask drops comes with an interval over all rows of the segment, so the
    bounds alone say what is hidden.
    """
    if seqlen_q == 0:
        return
    if block_mask is None:
        yield 0, seqlen_q, lowered
        return
    batch, heads = _leading(lowered, block_mask)
    lowered = share_heads(lowered, heads).expand(batch, -1, -1, -1)
    column_block = torch.arange(lowered.shape[-1], device=lowered.device) // BLOCK
    for index in range(block_mask.shape[2]):
        start, stop = index * BLOCK, min((index + 1) * BLOCK, seqlen_q)
        dropped = share_heads(block_mask[:, :, index, :] == 0, heads)[..., column_block]
        lts, lte, uts, ute = lowered.clamp(start, stop).unbind(2)
        lts, lte = lts.masked_fill(dropped, start), lte.masked_fill(dropped, stop)
        yield start, stop, torch.stack((lts, lte, uts, ute), dim=2)
