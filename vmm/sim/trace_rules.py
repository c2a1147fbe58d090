# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The rules that a trace keeps, so that whoever replays one need not look twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.sim.trace import Trace


def check(trace: Trace) -> None:
    """Raises `vmm.errors.Invalid` with the first event that breaks a rule.

    Ops are known; time does not run backwards; numbers are not negative; an id is allocated once,
    with at least one byte, and freed at most once, later; streams are recorded between the two.
    """
    from vmm.sim.trace import OPS

    known = np.zeros(256, dtype=bool)
    known[[ord(letter) for letter in OPS]] = True
    _refuse(~known[trace.op], "has an unknown op, code {}", trace.op)
    _refuse(
        np.diff(trace.t_ns, prepend=trace.t_ns[:1]) < 0, "goes back in time to {} ns", trace.t_ns
    )
    for name in ("t_ns", "bytes", "stream", "pool", "tag"):
        values = getattr(trace, name)
        _refuse(values < 0, f"has {name} {{}}; it cannot be negative", values)
    tags = trace.header.get("tags")
    if isinstance(tags, list) and tags:
        _refuse(trace.tag >= len(tags), f"has tag {{}}; the header names {len(tags)}", trace.tag)
    _check_lifetimes(trace)


def _check_lifetimes(trace: Trace) -> None:
    allocs = np.flatnonzero(trace.op == ord("a"))
    ids = trace.id[allocs]
    _refuse(ids < 0, "allocates id {}; it cannot be negative", ids, allocs)
    _refuse(trace.bytes[allocs] < 1, "allocates {} bytes; at least 1", trace.bytes[allocs], allocs)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    again = np.zeros(len(ids), dtype=bool)
    again[order[1:]] = ordered[1:] == ordered[:-1]
    _refuse(again, "allocates id {}, which was allocated before", ids, allocs)

    ends = np.full(len(ids), len(trace), dtype=np.int64)
    frees = np.flatnonzero(trace.op == ord("f"))
    place = _allocation_of(trace, frees, "frees", ordered, order)
    _refuse(allocs[place] > frees, "frees id {} before its alloc", trace.id[frees], frees)
    first = np.unique(place, return_index=True)[1]
    second = np.ones(len(frees), dtype=bool)
    second[first] = False
    _refuse(second, "frees id {}, which was freed before", trace.id[frees], frees)
    ends[place] = frees

    uses = np.flatnonzero(trace.op == ord("r"))
    place = _allocation_of(trace, uses, "records a stream on", ordered, order)
    outside = (allocs[place] > uses) | (ends[place] < uses)
    _refuse(outside, "records a stream on id {}, which is not live", trace.id[uses], uses)


def _allocation_of(
    trace: Trace, events: NDArray[Any], verb: str, ordered: NDArray[Any], order: NDArray[Any]
) -> NDArray[np.int64]:
    """For each event the number of the alloc with its id."""
    ids = trace.id[events]
    place = np.searchsorted(ordered, ids)
    found = place < len(ordered)
    found[found] = ordered[place[found]] == ids[found]
    _refuse(~found, f"{verb} id {{}}, which is never allocated", ids, events)
    result: NDArray[np.int64] = order[place]
    return result


def _refuse(
    broken: NDArray[Any], text: str, values: NDArray[Any], events: NDArray[Any] | None = None
) -> None:
    places = np.flatnonzero(broken)
    if places.size:
        first = int(places[0])
        event = first if events is None else int(events[first])
        raise Invalid(f"event {event} of the trace {text.format(int(values[first]))}")
