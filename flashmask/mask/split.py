# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The way out for masks with more than two intervals per column: several calls, each exact.

Rows do not depend on one another. So rows are cut into segments in which every column has at most
two intervals, attention runs once per segment, and outputs are concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from flashmask.mask.convert import (
    MAX_MOD_ELEMENTS,
    MaskMod,
    four_dimensions,
    hidden_by_mask_mod,
)
from flashmask.mask.encode import mask_of_hidden
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.intervals import HiddenRows, clip, hidden_by_dense

ColumnIntervals = Sequence[Sequence[tuple[int, int]]]


class RowSegment(NamedTuple):
    """Rows `[row_start, row_stop)` of a mask, and the mask of these rows."""

    row_start: int
    row_stop: int
    mask: FlashMask


def split_rows(
    source: Tensor | MaskMod | ColumnIntervals | HiddenRows,
    *,
    batch: int = 1,
    heads: int = 1,
    seqlen_q: int | None = None,
    seqlen_k: int | None = None,
    max_dense_elements: int = MAX_MOD_ELEMENTS,
    device: torch.device | str | None = None,
) -> list[RowSegment]:
    """Return as few segments of rows as possible whose masks have two intervals per column.

    Use them so:

        outputs = [
            flashmask_attention(query[:, start:stop], key, value, mask)
            for start, stop, mask in split_rows(visible)
        ]
        output = torch.cat(outputs, dim=1)

    Every segment is made as long as possible, which makes their number the smallest.

    Args:
        source: the mask, as one of
            - a dense mask, bool `[Sq, Sk]`, `[B, Sq, Sk]` or `[B, Hm, Sq, Sk]`, True is visible;
            - a FlexAttention `mask_mod`, with `seqlen_q` and `seqlen_k` (see `from_mask_mod`);
            - for every column the list of its hidden intervals `(start, stop)`, with `seqlen_q`;
            - the hidden rows of two combined masks (`hidden_rows_and`, `hidden_rows_or`).
        batch: B of a `mask_mod`.
        heads: number of heads of a `mask_mod`.
        seqlen_q: Sq, where `source` does not tell.
        seqlen_k: Sk, where `source` does not tell.
        max_dense_elements: elements of a `mask_mod` to evaluate at once.
        device: where a `mask_mod` reads its tensors.

    Returns:
        Segments in ascending order that cover all rows; none if there are no rows.

    Raises:
        ValueError: a size is missing.
    """
    if isinstance(source, HiddenRows):
        hidden = source
    elif isinstance(source, Tensor):
        hidden = hidden_by_dense(four_dimensions(source))
    elif callable(source):
        if seqlen_q is None or seqlen_k is None:
            raise ValueError("seqlen_q and seqlen_k must be given for a mask_mod")
        hidden = hidden_by_mask_mod(
            source,
            batch,
            heads,
            seqlen_q,
            seqlen_k,
            max_dense_elements=max_dense_elements,
            device=device,
        )
    else:
        if seqlen_q is None:
            raise ValueError("seqlen_q must be given for lists of intervals")
        hidden = _hidden_by_lists(source, seqlen_q)
    return _longest_segments(hidden)


def _longest_segments(hidden: HiddenRows) -> list[RowSegment]:
    """Cut greedily: a segment ends where some column would start its third interval.

    A segment costs one binary search per column, about as much as writing its bounds.
    """
    # Three sentinels, so that there is a third interval to look up wherever the first one is.
    sorted_stops = hidden.stops.transpose(2, 3).contiguous()
    starts, stops = (
        torch.nn.functional.pad(tensor.transpose(2, 3), (0, 3), value=hidden.seqlen_q)
        for tensor in (hidden.starts, hidden.stops)
    )
    segments = []
    row = 0
    while row < hidden.seqlen_q:
        here = torch.full_like(sorted_stops[..., :1], row)
        first = torch.searchsorted(sorted_stops, here, right=True)
        third_start = starts.gather(-1, first + 2)
        stop = int(third_start.min()) if third_start.numel() else hidden.seqlen_q
        two = torch.cat((first, first + 1), dim=-1)
        pair = HiddenRows(
            starts.gather(-1, two).transpose(2, 3),
            stops.gather(-1, two).transpose(2, 3),
            hidden.seqlen_q,
        )
        segments.append(RowSegment(row, stop, mask_of_hidden(clip(pair, row, stop))))
        row = stop
    return segments


def _hidden_by_lists(columns: ColumnIntervals, seqlen_q: int) -> HiddenRows:
    """Return the hidden rows of one list of intervals per column."""
    slots = max([1, *(len(column) for column in columns)])
    pairs = torch.full((len(columns), slots, 2), seqlen_q, dtype=torch.int32)
    for column, intervals in zip(pairs, columns, strict=True):
        if intervals:
            column[: len(intervals)] = torch.tensor(intervals, dtype=torch.int32)
    starts, stops = pairs.permute(2, 1, 0)[:, None, None]
    # Clipping to all rows sorts and joins them too.
    return clip(HiddenRows(starts, stops, seqlen_q), 0, seqlen_q)
