# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings as Chrome traces: counters and markers that Perfetto and chrome://tracing show."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import Invalid
from vmm.observe.curves import Curves, curves
from vmm.observe.events import CAUSE_ALIAS, CAUSE_MOVE, CAUSE_SHIFT
from vmm.observe.notes import is_begin, is_end, region_name

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

_MARKERS = {
    "o": "out of memory",
    "w": "wait",
    "y": "device sync",
    "m": "step",
    "z": "sleep",
    "Z": "wake",
}
_STEALS = {CAUSE_MOVE: "steal: move", CAUSE_ALIAS: "steal: alias"}
_COUNTERS = ("allocated", "active", "requested", "mapped")


def write(
    path: str | os.PathLike[str], traces: Mapping[int, Trace], *, max_points: int = 200_000
) -> None:
    """Writes a JSON object with ``traceEvents``; a device is a process, bytes are counters.

    Times are microseconds since the first event. Raises `vmm.errors.Invalid`, OSError.
    """
    from vmm.sim.atomic_file import new_file

    if isinstance(max_points, bool) or not isinstance(max_points, int) or max_points < 2:
        raise Invalid(f"max_points: must be a whole number from 2, but is {max_points!r}")
    with new_file(path) as raw:
        if os.fspath(path).endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                _write_to(packed, traces, max_points)
        else:
            _write_to(raw, traces, max_points)


def _write_to(raw: Any, traces: Mapping[int, Trace], max_points: int) -> None:
    text = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    text.write('{"displayTimeUnit":"ns","traceEvents":[\n')
    comma = ""
    for device, trace in sorted(traces.items()):
        for event in _events(device, trace, max_points):
            text.write(comma + json.dumps(event, separators=(",", ":")))
            comma = ",\n"
    text.write("\n]}\n")
    text.detach()


def _events(device: int, trace: Trace, max_points: int) -> Iterator[dict[str, Any]]:
    yield {
        "ph": "M",
        "pid": device,
        "name": "process_name",
        "args": {"name": f"memory of device {device}"},
    }
    if not len(trace):
        return
    start = int(trace.t_ns[0])
    time_us = ((trace.t_ns - start) / 1000).tolist()
    yield from _counters(device, curves(trace), time_us, max_points)
    yield from _markers(device, trace, time_us)


def _counters(
    device: int, totals: Curves, time_us: list[float], max_points: int
) -> Iterator[dict[str, Any]]:
    values = {name: getattr(totals, name) for name in _COUNTERS}
    for at in kept(totals.allocated, max_points).tolist():
        yield {
            "ph": "C",
            "pid": device,
            "name": "bytes",
            "ts": time_us[at],
            "args": {name: int(column[at]) for name, column in values.items()},
        }


def kept(values: NDArray[Any], most: int) -> NDArray[Any]:
    """At most `most` ascending indexes of an array (`most` from 2); if it is longer, those of the
    lowest and the highest value of each of `most` // 2 stretches."""
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most // 2 + 1).astype(np.int64)
    picked = [
        begin + find(values[begin:end])
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        for find in (np.argmin, np.argmax)
    ]
    return np.unique(np.array(picked, dtype=np.int64))


def _markers(device: int, trace: Trace, time_us: list[float]) -> Iterator[dict[str, Any]]:
    extra = trace.extra
    initial = int(trace.header.get("initial_rows", 0))
    tags = trace.header.get("tags", [""])
    zeros = np.zeros(len(trace), dtype=np.int64)
    threads = extra.get("thread", zeros)
    causes = extra.get("aux", zeros) >> CAUSE_SHIFT
    steal = trace.is_op("M") & np.isin(causes, list(_STEALS))
    shown = np.flatnonzero(trace.is_op("n" + "".join(_MARKERS)) | steal)
    for at in shown[shown >= initial].tolist():
        letter = chr(trace.op[at])
        event: dict[str, Any] = {"pid": device, "tid": int(threads[at]), "ts": time_us[at]}
        if letter == "n":
            text = tags[trace.tag[at]] if trace.tag[at] < len(tags) else ""
            if is_begin(text) or is_end(text):
                phase = "B" if is_begin(text) else "E"
                yield {**event, "ph": phase, "name": region_name(text)}
                continue
            name = text
        else:
            name = _STEALS[int(causes[at])] if letter == "M" else _MARKERS[letter]
        yield {
            **event,
            "ph": "i",
            "s": "p",
            "name": name,
            "args": {"bytes": int(trace.bytes[at])},
        }
