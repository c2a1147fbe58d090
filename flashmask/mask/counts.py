# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Exact numbers of visible pairs and of keys per row, without a dense mask.

O(S) from the bounds alone. A block mask cuts the rows into blocks; there, only the columns of
partial tiles are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from flashmask.mask.dense import BLOCK, share_heads
from flashmask.mask.tiles import FULL, PARTIAL, tile_classes


class _Rows(NamedTuple):
    """Some consecutive rows, with what is needed to count the keys they see.

    Args:
        start: first row.
        stop: one past the last row.
        lowered: bounds of the columns to count one by one, int32 `[B, Hm, 4, n]`, clipped to these
            rows. A column dropped by the block mask hides all of them.
        elsewhere: number of other columns that all these rows see, int64 `[B, Hm]`.
    """

    start: int
    stop: int
    lowered: Tensor
    elsewhere: Tensor


def exact_visible_pairs(lowered: Tensor, seqlen_q: int, block_mask: Tensor | None = None) -> Tensor:
    """Return the number of visible (row, column) pairs of every mask head.

    Args:
        lowered: int32 `[B, Hm, 4, Sk]`, see `lower`.
        seqlen_q: Sq.
        block_mask: integer `[B, Hm, ceil(Sq/128), ceil(Sk/128)]` or None.

    Returns:
        int64 `[B, Hm]`, with the larger batch and number of heads of the two tensors.
    """
    pairs = lowered.new_zeros(_leading(lowered, block_mask), dtype=torch.int64)
    for rows in _rows_to_count(lowered, seqlen_q, block_mask):
        lts, lte, uts, ute = rows.lowered.long().unbind(2)
        both = (torch.minimum(lte, ute) - torch.maximum(lts, uts)).clamp_min(0)
        length = rows.stop - rows.start
        visible = length - (lte - lts) - (ute - uts) + both
        pairs = pairs + visible.sum(dim=-1) + length * rows.elsewhere
    return pairs


def visible_keys_per_row(
    lowered: Tensor, seqlen_q: int, block_mask: Tensor | None = None
) -> Tensor:
    """Return how many keys every row sees, int64 `[B, Hm, Sq]`; see `exact_visible_pairs`."""
    parts = [lowered.new_zeros((*_leading(lowered, block_mask), 0), dtype=torch.int64)]
    for rows in _rows_to_count(lowered, seqlen_q, block_mask):
        lts, lte, uts, ute = (rows.lowered.long() - rows.start).unbind(2)
        # A row hidden by both intervals is counted by each, so their intersection is taken off.
        both_start, both_stop = torch.maximum(lts, uts), torch.minimum(lte, ute)
        one = torch.ones_like(lts)
        minus = -one.masked_fill(both_start >= both_stop, 0)
        # Hidden columns per row: add at the start of an interval, take off again at its end.
        steps = one.new_zeros((*lts.shape[:2], rows.stop - rows.start + 1))
        for start, stop, weight in (
            (lts, lte, one),
            (uts, ute, one),
            (both_start, both_stop, minus),
        ):
            steps.scatter_add_(2, start, weight).scatter_add_(2, stop, -weight)
        hidden = steps.cumsum(dim=-1)[..., :-1]
        parts.append(rows.elsewhere[..., None] + lts.shape[-1] - hidden)
    return torch.cat(parts, dim=-1)


def _rows_to_count(lowered: Tensor, seqlen_q: int, block_mask: Tensor | None) -> Iterator[_Rows]:
    """Yield all rows at once, or block by block if there is a block mask."""
    batch, heads = _leading(lowered, block_mask)
    if block_mask is None:
        if seqlen_q > 0:
            yield _Rows(0, seqlen_q, lowered, lowered.new_zeros((batch, heads), dtype=torch.int64))
        return
    lowered = share_heads(lowered, heads).expand(batch, -1, -1, -1)
    dropped = share_heads(block_mask, heads).expand(batch, -1, -1, -1) == 0
    classes = tile_classes(lowered, seqlen_q, block_mask)
    within_block = torch.arange(BLOCK, device=lowered.device)
    block_starts = torch.arange(classes.shape[-1], device=lowered.device) * BLOCK
    columns_in = (lowered.shape[-1] - block_starts).clamp(max=BLOCK)
    for index in range(classes.shape[2]):
        start, stop = index * BLOCK, min((index + 1) * BLOCK, seqlen_q)
        one_by_one = (classes[:, :, index] == PARTIAL).any(dim=0).any(dim=0)
        full = (classes[:, :, index] == FULL) & ~one_by_one
        columns = (one_by_one.nonzero() * BLOCK + within_block).flatten()
        columns = columns[columns < lowered.shape[-1]]
        lts, lte, uts, ute = lowered[..., columns].clamp(start, stop).unbind(2)
        hide = dropped[:, :, index, columns // BLOCK]
        lts, lte = lts.masked_fill(hide, start), lte.masked_fill(hide, stop)
        clipped = torch.stack((lts, lte, uts, ute), dim=2)
        yield _Rows(start, stop, clipped, (full * columns_in).sum(dim=-1))


def _leading(lowered: Tensor, block_mask: Tensor | None) -> tuple[int, int]:
    """Return batch and number of mask heads of bounds and block mask together."""
    batch, heads = lowered.shape[:2]
    if block_mask is None:
        return batch, heads
    return max({batch, block_mask.shape[0]} - {1}, default=1), max(heads, block_mask.shape[1])
