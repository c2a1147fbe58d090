# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings as a table: a row per event, with the totals after it."""

from __future__ import annotations

import csv
import gzip
import io
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from vmm.observe.curves import curves
from vmm.observe.events import CAUSE_SHIFT, CAUSES, PAGE_MASK

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

COLUMNS = (
    "time_ns",
    "action",
    "id",
    "address",
    "size",
    "requested",
    "page",
    "cause",
    "stream",
    "pool",
    "thread",
    "tag",
    "allocated",
    "active",
    "mapped",
    "stack",
)
_ROWS = 1 << 14
_PAGES = (ord("M"), ord("U"))


def write(path: str | os.PathLike[str], trace: Trace) -> None:
    """Writes comma-separated values with a line of names first.

    Sizes are bytes, times nanoseconds since the first event, addresses hexadecimal, a stack is
    ``file:line:function`` with semicolons between, innermost first. A field that does not apply is
    empty.
    """
    from vmm.sim.atomic_file import new_file

    with new_file(path) as raw:
        if os.fspath(path).endswith(".gz"):
            with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed:
                _write_to(packed, trace)
        else:
            _write_to(raw, trace)


def _write_to(raw: Any, trace: Trace) -> None:
    from vmm.sim.trace import OPS

    text = io.TextIOWrapper(raw, encoding="utf-8", newline="", write_through=True)
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    names = {ord(letter): name for letter, name in OPS.items()}
    tags = trace.header.get("tags", [""])
    streams = trace.header.get("streams", [])
    stacks = [";".join(f"{f}:{n}:{name}" for f, n, name in s) for s in trace.header["stacks"]]
    totals = curves(trace)
    zeros = np.zeros(len(trace), dtype=np.int64)
    extra = trace.extra
    start = int(trace.t_ns[0]) if len(trace) else 0
    columns = [
        trace.t_ns - start,
        trace.op,
        trace.id,
        trace.bytes,
        trace.stream,
        trace.pool,
        trace.tag,
        *(extra.get(name, zeros) for name in ("addr", "requested", "aux", "thread", "stack")),
        totals.allocated,
        totals.active,
        totals.mapped,
    ]
    for begin in range(0, len(trace), _ROWS):
        part = [column[begin : begin + _ROWS].tolist() for column in columns]
        for t, op, id, size, stream, pool, tag, addr, asked, aux, thread, stack, *sums in zip(
            *part, strict=True
        ):
            page = op in _PAGES
            table.writerow(
                (
                    t,
                    names[op],
                    id if id >= 0 else "",
                    hex(addr) if addr else "",
                    size,
                    asked or "",
                    aux & PAGE_MASK if page else "",
                    CAUSES[aux >> CAUSE_SHIFT] if page else "",
                    streams[stream] if stream < len(streams) else stream,
                    pool,
                    thread,
                    tags[tag] if tag < len(tags) else tag,
                    *sums,
                    stacks[stack] if stack < len(stacks) else "",
                )
            )
    text.detach()
