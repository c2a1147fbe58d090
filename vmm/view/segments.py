# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The segments of a torch snapshot as mapped ranges: first those from before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmm.sim.snapshot import SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, Snapshot
from vmm.sim.trace import COLUMNS, Trace

# Expandable segments map and unmap multiples of this; a range is cut into them, so that an unmap
# may end a part of what was mapped at once.
PIECE = 2 << 20
_APPEARS = (SEGMENT_ALLOC, SEGMENT_MAP)
_PARTS = (SEGMENT_MAP, SEGMENT_UNMAP)

Range = tuple[int, int]  # address, bytes


def with_segments(trace: Trace, snapshot: Snapshot) -> tuple[Trace, NDArray[np.bool_]]:
    """The trace with an M or a U per range, and per event whether its range joins the one below.

    The times of ``trace`` are event numbers of ``snapshot``.
    """
    rows: list[tuple[int, int, int, int, bool]] = []  # event, op, address, bytes, joins
    for event in np.flatnonzero(np.isin(snapshot.action, (*_APPEARS, SEGMENT_FREE, SEGMENT_UNMAP))):
        action = int(snapshot.action[event])
        place = (int(snapshot.addr[event]), int(snapshot.size[event]))
        parts = action in _PARTS
        letter = ord("M" if action in _APPEARS else "U")
        rows += [(int(event), letter, *piece, parts) for piece in _pieces(place, parts)]
    start = [(0, ord("M"), *place, joins) for place, joins in _at_start(snapshot, rows)]
    # Memory is there before what lies in it, and goes after that.
    table = np.array(start + rows, dtype=np.int64).reshape(-1, 5)
    places = np.searchsorted(trace.t_ns, table[:, 0], side="left")
    places[: len(start)] = 0
    values = {"t_ns": table[:, 0], "op": table[:, 1], "bytes": table[:, 3], "addr": table[:, 2]}
    values |= {"id": np.full(len(table), -1)}
    zero = np.zeros(len(table), dtype=np.int64)
    columns = {
        name: np.insert(column, places, values.get(name, zero))
        for name, column in trace.columns.items()
    }
    joins_at = np.insert(np.ones(len(trace), dtype=np.int64), places, table[:, 4]).astype(bool)
    own = {name: columns.pop(name) for name in COLUMNS}
    return Trace(trace.header, **own, extra=columns), joins_at


def _pieces(place: Range, parts: bool) -> list[Range]:
    address, size = place
    if not parts or size % PIECE:
        return [place]
    return [(address + offset, PIECE) for offset in range(0, size, PIECE)]


def _at_start(
    snapshot: Snapshot, rows: list[tuple[int, int, int, int, bool]]
) -> list[tuple[Range, bool]]:
    """Undoes the events from the segments at the end: what must have stood at the start."""
    standing: dict[Range, bool] = {}
    for segment in snapshot.segments:
        place, parts = (segment["address"], segment["total_size"]), bool(segment["is_expandable"])
        # An expandable segment is listed as one range, however it was mapped.
        standing |= dict.fromkeys(_pieces(place, parts), parts)
    for _event, letter, address, size, parts in reversed(rows):
        if letter == ord("M"):
            standing.pop((address, size), None)
        else:
            standing[address, size] = parts
    return sorted(standing.items())
