# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What is in a trace, in a few lines."""

from __future__ import annotations

import numpy as np

from vmm.sim.trace import OPS, Trace

_ROUNDING = 512  # what allocators of device memory round to


def summary(trace: Trace) -> list[tuple[str, str]]:
    """(name, value) pairs to print; peaks are sums over live allocations, nothing is simulated."""
    allocs = trace.is_op("a")
    sizes = trace.bytes[allocs]
    frees = int(np.count_nonzero(trace.is_op("f")))
    rows = [("source", str(trace.header.get("source", "unknown")))]
    rows.append(("events", str(len(trace))))
    rows += [
        (f"  {OPS[letter]}", str(count))
        for letter in OPS
        if (count := int(np.count_nonzero(trace.is_op(letter))))
    ]
    if len(sizes):
        rows += [
            ("peak, requested", _bytes(int(trace.live().max()))),
            (f"peak, by {_ROUNDING} B", _bytes(int(trace.live(_ROUNDING).max()))),
            ("live at the end", f"{_bytes(int(trace.live()[-1]))} in {len(sizes) - frees}"),
            ("largest request", _bytes(int(sizes.max()))),
            ("median request", _bytes(int(np.median(sizes)))),
        ]
    rows += [
        ("streams", str(len(np.unique(trace.stream[allocs])))),
        ("pools", str(len(np.unique(trace.pool[allocs])))),
        ("steps", str(trace.steps)),
    ]
    if len(trace):
        rows.append(("duration", f"{(trace.t_ns[-1] - trace.t_ns[0]) / 1e9:.6f} s"))
    notes = trace.header.get("notes") or []
    rows += [("note", str(note)) for note in (notes if isinstance(notes, list) else [notes])]
    return rows


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit} ({count})"
    return f"{count} B"
