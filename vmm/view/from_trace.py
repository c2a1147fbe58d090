# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Turns traces, and torch snapshots, into what the viewer shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.sim.snapshot import OTHER, Snapshot
from vmm.sim.trace import Trace
from vmm.view.pairing import pair_blocks, pair_maps
from vmm.view.recording import OTHER_COLUMNS, Recording, empty
from vmm.view.segments import with_segments

# A snapshot has the sizes that were asked for; torch takes a multiple of this.
TORCH_GRANULE = 512
_EVENT_COLUMNS = ("action", "addr", "size", "stream", "pool", "stack", "tag")


def from_trace(trace: Trace, name: str) -> Recording:
    """The recording in a trace; ``name`` is what the page calls it."""
    own = bool(np.any(trace.is_op("MU")))
    return _build(trace, name, "recording" if own else "trace", None, 1)


def from_snapshot(snapshot: Snapshot, name: str) -> Recording:
    """The recording in a torch snapshot. Its segments become mapped ranges without page numbers."""
    # Times that are event numbers tell where the events of segments belong between the others, and
    # with an event of no meaning in front, what is from before the first event.
    numbered = _with_start(snapshot)
    trace, joins = with_segments(numbered.to_trace(completions=True), numbered)
    start = int(np.count_nonzero(trace.t_ns == 0))
    if snapshot.timed and len(snapshot):
        trace = replace(trace, t_ns=snapshot.t_ns[np.maximum(trace.t_ns - 1, 0)])
    trace.header["initial_rows"] = start
    return replace(_build(trace, name, "snapshot", joins, TORCH_GRANULE), timed=snapshot.timed)


def _with_start(snapshot: Snapshot) -> Snapshot:
    front = {name: np.zeros(1, dtype=np.int64) for name in _EVENT_COLUMNS}
    front["action"][0] = OTHER
    columns: dict[str, Any] = {
        name: np.concatenate([zero, getattr(snapshot, name)]).astype(getattr(snapshot, name).dtype)
        for name, zero in front.items()
    }
    return replace(snapshot, **columns, t_ns=np.arange(len(snapshot) + 1, dtype=np.int64))


def _build(
    trace: Trace, name: str, kind: str, joins: NDArray[np.bool_] | None, granule: int
) -> Recording:
    ref = np.full(len(trace), -1, dtype=np.int64)
    blocks = pair_blocks(trace, ref, granule)
    maps = pair_maps(trace, ref, joins)
    others = empty(OTHER_COLUMNS)
    rest = np.flatnonzero(~trace.is_op("afcrMU"))
    ref[rest] = np.arange(len(rest))
    for column in ("bytes", "stream", "tag"):
        others[column] = getattr(trace, column)[rest].astype(np.int64)
    aux = trace.extra.get("aux")
    others["aux"] = np.zeros(len(rest), np.int64) if aux is None else aux[rest].astype(np.int64)
    size = trace.header.get("page_size")
    if not isinstance(size, int) or size < 1:
        size = int(maps["bytes"].min()) if len(maps["bytes"]) else 0
    start = trace.header.get("initial_rows", 0)  # of what was there when the recording began
    start = start if isinstance(start, int) and 0 <= start <= len(trace) else 0
    notes = trace.header.get("notes", [])
    lost = maps["birth"] < 0
    return Recording(
        name=name,
        kind=kind,
        t_ns=trace.t_ns - (trace.t_ns[0] if len(trace) else 0),
        op=trace.op,
        ref=ref,
        blocks=blocks,
        maps=maps,
        others=others,
        header=trace.header,
        page_size=size,
        held_before=int(maps["held"][lost].sum()),
        start_events=start,
        file_events=len(trace) - start,
        timed=bool(len(trace)) and bool(trace.t_ns[-1] > trace.t_ns[0]),
        notes=[str(note) for note in (notes if isinstance(notes, list) else [notes])],
    )
