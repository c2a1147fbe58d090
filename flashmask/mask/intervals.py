# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The hidden rows of every column as a sorted list of intervals: any number of them, exact.

Lowered bounds may overlap and hold two intervals at most. This form has no such limit, so masks are
combined and converted in it, and then written back by `encode`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from flashmask.mask.dense import share_heads


class HiddenRows(NamedTuple):
    """Hidden row intervals `[start, stop)` of every column, ascending, none touching another.

    Args:
        starts: int32 `[B, Hm, K, Sk]`; unused slots come last and hold Sq.
        stops: int32 `[B, Hm, K, Sk]`; unused slots hold Sq.
        seqlen_q: Sq.
    """

    starts: Tensor
    stops: Tensor
    seqlen_q: int

    @property
    def counts(self) -> Tensor:
        """Number of intervals of every column, int64 `[B, Hm, Sk]`."""
        return (self.starts < self.stops).sum(dim=2)

    def of_column(self, batch: int, head: int, column: int) -> list[tuple[int, int]]:
        """Return the intervals of one column."""
        starts, stops = self.starts[batch, head, :, column], self.stops[batch, head, :, column]
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        return [(start, stop) for start, stop in pairs if start < stop]


def hidden_by_lowered(lowered: Tensor, seqlen_q: int) -> HiddenRows:
    """Return the hidden rows of lowered bounds, int32 `[B, Hm, 4, Sk]`."""
    return _merge(lowered[:, :, 0::2], lowered[:, :, 1::2], seqlen_q)


def hidden_by_dense(visible: Tensor) -> HiddenRows:
    """Return the hidden rows of a dense mask, bool `[B, Hm, Sq, Sk]`, True is visible."""
    batch, heads, seqlen_q, seqlen_k = visible.shape
    hidden = torch.nn.functional.pad(~visible.transpose(2, 3), (1, 1))
    before, after = hidden[..., :-1], hidden[..., 1:]
    # Both come in the same order, column by column and down the rows, so they pair up.
    first = (after & ~before).nonzero()
    past = (before & ~after).nonzero()[:, 3]
    column = (first[:, 0] * heads + first[:, 1]) * seqlen_k + first[:, 2]
    counts = torch.bincount(column, minlength=batch * heads * seqlen_k)
    slot = torch.arange(len(column), device=column.device) - (counts.cumsum(0) - counts)[column]
    slots = max(1, int(counts.max())) if counts.numel() else 1
    starts = visible.new_full((counts.numel(), slots), seqlen_q, dtype=torch.int32)
    stops = starts.clone()
    starts[column, slot] = first[:, 3].to(torch.int32)
    stops[column, slot] = past.to(torch.int32)
    shape = (batch, heads, seqlen_k, slots)
    return HiddenRows(
        starts.reshape(shape).transpose(2, 3), stops.reshape(shape).transpose(2, 3), seqlen_q
    )


def union(a: HiddenRows, b: HiddenRows) -> HiddenRows:
    """Return the rows hidden by either; batch and heads broadcast."""
    (a_starts, a_stops), (b_starts, b_stops) = _same_leading(a, b)
    return _merge(
        torch.cat((a_starts, b_starts), dim=2), torch.cat((a_stops, b_stops), dim=2), a.seqlen_q
    )


def intersection(a: HiddenRows, b: HiddenRows) -> HiddenRows:
    """Return the rows hidden by both; batch and heads broadcast."""
    (a_starts, a_stops), (b_starts, b_stops) = _same_leading(a, b)
    starts = torch.maximum(a_starts.unsqueeze(3), b_starts.unsqueeze(2)).flatten(2, 3)
    stops = torch.minimum(a_stops.unsqueeze(3), b_stops.unsqueeze(2)).flatten(2, 3)
    return _merge(starts, stops, a.seqlen_q)


def clip(hidden: HiddenRows, start: int, stop: int) -> HiddenRows:
    """Return the hidden rows among rows [start, stop), counted from `start`."""
    return _merge(
        hidden.starts.clamp(start, stop) - start,
        hidden.stops.clamp(start, stop) - start,
        stop - start,
    )


def concatenate(blocks: list[HiddenRows]) -> HiddenRows:
    """Join blocks of columns."""
    slots = max(block.starts.shape[2] for block in blocks)
    seqlen_q = blocks[0].seqlen_q

    def widen(tensor: Tensor) -> Tensor:
        missing = slots - tensor.shape[2]
        return torch.nn.functional.pad(tensor, (0, 0, 0, missing), value=seqlen_q)

    return HiddenRows(
        torch.cat([widen(block.starts) for block in blocks], dim=3),
        torch.cat([widen(block.stops) for block in blocks], dim=3),
        seqlen_q,
    )


def require_two_intervals(hidden: HiddenRows, origin: str, first_column: int = 0) -> None:
    """Check that every column has at most two intervals, as many as bounds can hold.

    Args:
        hidden: the hidden rows.
        origin: what the message calls the mask.
        first_column: number of the first column in `hidden`.

    Raises:
        ValueError: naming the first column that has more, and its intervals.
    """
    too_many = (hidden.counts > 2).nonzero()
    if len(too_many) == 0:
        return
    batch, head, column = too_many[0].tolist()
    intervals = hidden.of_column(batch, head, column)
    shown = ", ".join(f"[{start}, {stop})" for start, stop in intervals[:8])
    raise ValueError(
        f"{origin} does not fit: column {first_column + column} of batch entry {batch}, mask head "
        f"{head}, hides {len(intervals)} separate intervals of rows, "
        f"{shown}{', ...' if len(intervals) > 8 else ''}, and bounds hold two. "
        f"masks.split_rows splits such a mask into segments of rows that fit"
    )


def _same_leading(
    a: HiddenRows, b: HiddenRows
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Broadcast batch and mask heads of two masks against each other."""
    batch = max({a.starts.shape[0], b.starts.shape[0]} - {1}, default=1)
    heads = max(a.starts.shape[1], b.starts.shape[1])
    both = []
    for hidden in (a, b):
        tensors = (share_heads(tensor, heads) for tensor in (hidden.starts, hidden.stops))
        starts, stops = (tensor.expand(batch, -1, -1, -1) for tensor in tensors)
        both.append((starts, stops))
    return both[0], both[1]


def _merge(starts: Tensor, stops: Tensor, seqlen_q: int) -> HiddenRows:
    """Sort intervals, join those that overlap or touch, and drop empty ones."""
    empty = starts >= stops
    starts, order = starts.masked_fill(empty, seqlen_q).sort(dim=2, stable=True)
    stops = stops.masked_fill(empty, seqlen_q).gather(2, order)
    # An interval begins a new run if it starts beyond everything before it. Empty ones come last,
    # start at Sq, and so never begin one.
    reach = stops.cummax(dim=2).values.roll(1, dims=2)
    reach[:, :, :1] = -1
    begins = (starts > reach) & (starts < stops)
    run = (begins.cumsum(dim=2) - 1).clamp_min(0)
    stops = stops.masked_fill(starts >= stops, 0)
    run_starts = torch.full_like(starts, seqlen_q).scatter_reduce(2, run, starts, "amin")
    run_stops = torch.zeros_like(stops).scatter_reduce(2, run, stops, "amax")
    run_stops = run_stops.masked_fill(run_stops == 0, seqlen_q)
    counts = begins.sum(dim=2)
    slots = max(1, int(counts.max())) if counts.numel() else 1
    return HiddenRows(run_starts[:, :, :slots], run_stops[:, :, :slots], seqlen_q)
