# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A memory trace: what a program asked of its allocator, one numpy column per field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import Invalid

# What drives a replay, then what only recordings have.
OPS = {
    "a": "alloc",
    "f": "free",
    "r": "record_stream",
    "k": "kernel use",
    "s": "stream sync",
    "m": "step mark",
    "c": "free completed",
    "M": "page mapped",
    "U": "page unmapped",
    "o": "out of memory",
    "w": "wait",
    "y": "device sync",
    "z": "sleep",
    "Z": "wake",
    "n": "note",
}
REPLAYED = "afrksm"

# The columns that every trace has, and what one number of each takes in memory.
COLUMNS: dict[str, type[np.generic]] = {
    "t_ns": np.int64,
    "op": np.uint8,
    "id": np.int64,
    "bytes": np.int64,
    "stream": np.int32,
    "pool": np.int32,
    "tag": np.int32,
}
# Optional columns of recordings; any other name is kept as int64.
EXTRA_COLUMNS: dict[str, type[np.generic]] = {
    "addr": np.int64,
    "aux": np.int64,
    "stack": np.int32,
    "thread": np.int32,
    "requested": np.int64,
}

Column = NDArray[Any]


@dataclass(eq=False, repr=False)
class Trace:
    """Events in time order; all columns have the same length n.

    ``header`` holds where the trace is from: ``source``, ``device_capacity``, ``notes``, and the
    tables ``tags`` (texts, by tag number), ``streams`` (handles, by stream number) and ``stacks``.
    ``t_ns`` counts nanoseconds from an arbitrary start. ``op`` is the letter of `OPS` as its code.
    ``id`` names an allocation and is never used again after its free. ``bytes`` is what was asked
    for, at ``a``; the duration in ns at ``k``; a copy of the size, or 0, elsewhere.

    Raises `vmm.errors.Invalid` if the columns differ in length. `validate` checks the rest.
    """

    header: dict[str, Any]
    t_ns: Column
    op: Column
    id: Column
    bytes: Column
    stream: Column
    pool: Column
    tag: Column
    extra: dict[str, Column] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kind in COLUMNS.items():
            setattr(self, name, _column(name, getattr(self, name), kind, len(self.t_ns)))
        self.extra = {
            name: _column(name, values, EXTRA_COLUMNS.get(name, np.int64), len(self.t_ns))
            for name, values in self.extra.items()
        }

    def __repr__(self) -> str:
        return f"Trace(source={self.header.get('source')!r}, events={len(self)})"

    def __len__(self) -> int:
        return len(self.t_ns)

    @property
    def columns(self) -> dict[str, Column]:
        """All columns by name: the seven of every trace, then the extra ones."""
        return {name: getattr(self, name) for name in COLUMNS} | self.extra

    @property
    def steps(self) -> int:
        """How many step marks the trace has."""
        return int(np.count_nonzero(self.op == ord("m")))

    def is_op(self, letters: str) -> NDArray[np.bool_]:
        """bool[n]: where the event is one of the `letters`."""
        return np.isin(self.op, np.frombuffer(letters.encode(), dtype=np.uint8))

    def take(self, events: NDArray[Any], **header: Any) -> Trace:
        """The trace of some events (a mask, or ascending indexes), with more in the header."""
        return Trace(
            self.header | header,
            **{name: getattr(self, name)[events] for name in COLUMNS},
            extra={name: values[events] for name, values in self.extra.items()},
        )

    def with_steps(self, events: Iterable[int]) -> Trace:
        """A copy with a step mark put in front of each of these events (n: at the end).

        Marks that were there stay. Raises `Invalid` for an event that is not in 0..n.
        """
        places = np.asarray(sorted({int(event) for event in events}), dtype=np.int64)
        if places.size and not 0 <= places[0] <= places[-1] <= len(self):
            raise Invalid(
                f"step marks go in front of events 0 to {len(self)}, "
                f"not {places[0]} to {places[-1]}"
            )
        padded = np.append(self.t_ns, self.t_ns[-1:] if len(self) else np.zeros(1, np.int64))
        # A column that is not named here is 0 at a mark.
        marks: dict[str, Any] = {"t_ns": padded[places], "op": ord("m"), "id": -1, "addr": 0}
        inserted = {
            name: np.insert(values, places, marks.get(name, 0))
            for name, values in self.columns.items()
        }
        own = {name: inserted.pop(name) for name in COLUMNS}
        return replace(self, header=dict(self.header), **own, extra=inserted)

    def frees(self) -> NDArray[np.int64]:
        """int64[number of allocs]: for each alloc in order, the event that frees it, or n."""
        allocs = np.flatnonzero(self.op == ord("a"))
        frees = np.flatnonzero(self.op == ord("f"))
        result = np.full(len(allocs), len(self), dtype=np.int64)
        order = np.argsort(self.id[allocs], kind="stable")
        place = np.searchsorted(self.id[allocs][order], self.id[frees])
        result[order[place]] = frees
        return result

    def live(self, granule: int = 1) -> NDArray[np.int64]:
        """int64[n]: bytes live after each event, sizes rounded up to a multiple of `granule`."""
        sizes = -(-self.bytes[self.op == ord("a")] // granule) * granule
        change = np.zeros(len(self) + 1, dtype=np.int64)
        change[np.flatnonzero(self.op == ord("a"))] = sizes
        np.subtract.at(change, self.frees(), sizes)
        result: NDArray[np.int64] = np.cumsum(change[:-1])
        return result

    def validate(self) -> Trace:
        """Returns the trace itself if it keeps the rules, else raises `Invalid`."""
        from vmm.sim.trace_rules import check

        check(self)
        return self


def from_events(events: Iterable[Sequence[Any]], header: Mapping[str, Any] | None = None) -> Trace:
    """A checked trace of rows ``(t_ns, op letter, id, bytes, stream, pool, tag)``.

    Rows may leave out what follows ``id``; what is left out is 0. Raises `Invalid`.
    """
    rows = [tuple(event) for event in events]
    for number, row in enumerate(rows):
        if not 3 <= len(row) <= len(COLUMNS):
            raise Invalid(f"event {number} has {len(row)} fields; a row has 3 to {len(COLUMNS)}")
        if row[1] not in OPS:
            raise Invalid(f"event {number} has op {row[1]!r}; known are {' '.join(OPS)}")
    padded = [row + (0,) * (len(COLUMNS) - len(row)) for row in rows]
    columns: dict[str, Any] = {
        name: np.asarray([row[at] if name != "op" else ord(row[at]) for row in padded])
        for at, name in enumerate(COLUMNS)
    }
    return Trace(dict(header or {}), **columns).validate()


def _column(name: str, values: Any, kind: type[np.generic], length: int) -> Column:
    array = np.asarray(values)
    if array.ndim != 1 or len(array) != length:
        raise Invalid(f"column {name} has shape {array.shape}, but t_ns has {length} events")
    if array.size and array.dtype != kind:
        if array.dtype.kind not in "iub":
            raise Invalid(f"column {name} holds {array.dtype}, not integers")
        limits = np.iinfo(kind)  # type: ignore[type-var]
        low, high = int(array.min()), int(array.max())
        if low < limits.min or high > limits.max:
            raise Invalid(f"column {name} holds {low} to {high}; {kind.__name__} is its type")
    return np.ascontiguousarray(array, dtype=kind)
