# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which tiles of the attention matrix need no work, plain work, or work with masking.

Integer tensors only; the specification of what the compiled planner does.
"""

from __future__ import annotations

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
