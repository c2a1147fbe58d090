# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Turns a log that names allocations by their address into a trace that gives them numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from vmm.errors import FormatError
from vmm.sim.trace import Trace

_LIMIT = 1 << 63
_NAMES = ("op", "id", "bytes", "stream", "pool", "tag", "t_ns", "addr", "thread")


class AddressLog:
    """Collects allocations and frees in the order in which they happened.

    `build` makes the trace. A free of an unknown address whose size is known becomes an allocation
    before the first event; the header's notes count these, and all that had to be left out.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, ...]] = []
        self._before: list[tuple[int, ...]] = []
        self._live: dict[int, tuple[int, int, int]] = {}  # address -> id, bytes, stream
        self._ids = 0
        self._streams: dict[int, int] = {0: 0}
        self._tags: dict[str, int] = {"": 0}
        self._counts = dict.fromkeys(
            (
                "allocations from before the first event",
                "frees of unknown addresses left out",
                "zero-size requests left out",
                "allocations at a live address: the earlier one ends there",
                "frees that tell another size than their allocation",
            ),
            0,
        )

    def __len__(self) -> int:
        return len(self._rows)

    def alloc(
        self,
        address: int,
        size: int,
        *,
        t_ns: int = 0,
        stream: int = 0,
        thread: int = 0,
        tag: str = "",
    ) -> None:
        """Raises FormatError for numbers that no machine has."""
        _check(address, size, t_ns, thread)
        if size == 0:
            self._counts["zero-size requests left out"] += 1
            return
        if address in self._live:
            self._counts["allocations at a live address: the earlier one ends there"] += 1
            self.free(address, t_ns=t_ns, thread=thread)
        where = self._streams.setdefault(stream, len(self._streams))
        number = self._tags.setdefault(tag, len(self._tags))
        self._live[address] = (self._ids, size, where)
        self._rows.append((ord("a"), self._ids, size, where, 0, number, t_ns, address, thread))
        self._ids += 1

    def free(
        self, address: int, size: int = 0, *, t_ns: int = 0, stream: int = 0, thread: int = 0
    ) -> None:
        """`size` is 0 where the log does not tell it."""
        _check(address, size, t_ns, thread)
        known = self._live.pop(address, None)
        if known is None:
            if size == 0:
                kind = "frees of unknown addresses" if address else "zero-size requests"
                self._counts[f"{kind} left out"] += 1
                return
            self._counts["allocations from before the first event"] += 1
            where = self._streams.setdefault(stream, len(self._streams))
            known = (self._ids, size, where)
            self._before.append((ord("a"), self._ids, size, where, 0, 0, 0, address, thread))
            self._ids += 1
        elif size not in (0, known[1]):
            self._counts["frees that tell another size than their allocation"] += 1
        self._rows.append((ord("f"), known[0], known[1], known[2], 0, 0, t_ns, address, thread))

    def step(self, *, t_ns: int = 0) -> None:
        """Marks the beginning of a step."""
        _check(0, 0, t_ns, 0)
        self._rows.append((ord("m"), -1, 0, 0, 0, 0, t_ns, 0, 0))

    def build(self, source: str, *, notes: list[str] | None = None, **header: Any) -> Trace:
        """The trace, its time from 0 on. Raises FormatError if there is no event at all."""
        if not self._ids:
            raise FormatError(f"there is not one allocation or free in this {source}")
        start = self._rows[0][6]
        before = [(*row[:6], start, *row[7:]) for row in self._before]
        table = np.array(before + self._rows, dtype=np.int64)
        columns = dict(zip(_NAMES, table.T, strict=True))
        columns["t_ns"] = np.maximum.accumulate(columns["t_ns"] - start)
        extra = {name: columns.pop(name) for name in ("addr", "thread")}
        counted = [f"{count} {what}" for what, count in self._counts.items() if count]
        header |= {
            "source": source,
            "streams": list(self._streams),
            "tags": list(self._tags),
            "notes": (notes or []) + counted,
        }
        return Trace(header, **columns, extra=extra).validate()


def _check(address: int, size: int, t_ns: int, thread: int) -> None:
    for name, value, limit in (
        ("address", address, _LIMIT),
        ("size", size, _LIMIT),
        ("time in ns", t_ns, _LIMIT),
        ("thread", thread, 1 << 31),
    ):
        if not 0 <= value < limit:
            raise FormatError(f"the {name} {str(value)[:40]} is not from 0 to {limit - 1}")
