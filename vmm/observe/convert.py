# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From the events of the ring to a trace that can be understood from its first row on.

What was live or mapped before the first event does not stand in the ring. It follows from the
events (who is freed without being born was there) and from what is still there at the end; such
rows come first, and ``header["initial_rows"]`` counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vmm.observe import events as ev
from vmm.observe.events import Events
from vmm.observe.state import ACTIVE, PENDING, PINS, State
from vmm.sim.trace import Trace

if TYPE_CHECKING:
    from vmm.allocator import Arena, Block, Slot

_OF_BLOCKS = (ev.ALLOC, ev.FREE_REQUESTED, ev.FREE_COMPLETED, ev.RECORD_STREAM)
_Row = dict[str, int]


def to_trace(
    events: Events,
    *,
    device: int = 0,
    before: State | None = None,
    after: State | None = None,
    streams: Sequence[int] = (0,),
    tag_text: Callable[[int], str] = lambda tag: f"tag {tag}" if tag else "",
    stacks: Sequence[Sequence[tuple[str, int, str]]] = ((),),
    min_size: int = 0,
    lost: int = 0,
    **header: Any,
) -> Trace:
    """The events of one device as a trace.

    Columns: at ``a``, ``bytes`` is the size of the block (what it holds) and ``requested`` what was
    asked for; ``addr``, ``aux``, ``stack`` and ``thread`` are as in the event. ``id`` numbers the
    allocations, -1 elsewhere. `before` and `after` are the state when the recording began and when
    it ended; `after` decides what the ring has lost, `before` adds what frees do not tell.
    """
    events = events[events["device"] == device]
    tags = _Tags(tag_text)
    start = int(events["t_ns"].min()) if len(events) else 0
    ids, first_of, born = _lifetimes(events)
    old_blocks = _old_blocks(events, first_of, before, after, min_size, tags)
    # Ids of blocks that were there come first, so all ids are in order of their rows.
    slot = {row["addr"]: number for number, row in enumerate(old_blocks)}
    of_old = np.flatnonzero(ids == -2)
    ids = np.where(born, ids + len(old_blocks), ids)
    ids[of_old] = [slot[address] for address in events["address"][of_old].tolist()]

    rows = _old_pages(events, before, after)
    for number, row in enumerate(old_blocks):
        rows.append({**row, "op": ord("a"), "id": number})
        if row["pending"]:
            rows.append({**row, "op": ord("f"), "id": number})
    columns = _columns(events, ids)
    columns["tag"] = tags.numbers(events["tag"])
    names = list(columns)
    old = {name: np.array([row.get(name, 0) for row in rows], dtype=np.int64) for name in names}
    old["t_ns"] = np.full(len(rows), start, dtype=np.int64)
    own = {name: np.concatenate([old[name], columns[name]]) for name in names}
    # The clocks of several threads may differ by the time that the lock takes.
    own["t_ns"] = np.maximum.accumulate(own["t_ns"]) if len(own["t_ns"]) else own["t_ns"]
    used, own["stack"] = _used_stacks(stacks, own["stack"])
    extra = {name: own.pop(name) for name in ("addr", "aux", "stack", "thread", "requested")}
    last = after or before or State(device)
    full_header: dict[str, Any] = {
        "source": "vmm.record",
        "device": device,
        "device_capacity": last.stats.get("limit_bytes", 0),
        "page_size": last.stats.get("page_size", 0),
        "initial_rows": len(rows),
        "lost": lost,
        "min_size": min_size,
        "tags": tags.texts,
        "streams": [int(stream) for stream in streams],
        "stacks": used,
        "arenas": [_arena(row) for row in last.arenas],
        "pools": _pools(last),
        "slots": [_pinned(row) for row in last.slots if any(row.pins.values())],
        "notes": _notes(lost, min_size),
        **header,
    }
    return Trace(full_header, **own, extra=extra)


class _Tags:
    """The texts that this trace uses, numbered from 1; number 0 is the empty text."""

    def __init__(self, tag_text: Callable[[int], str]) -> None:
        self.texts = [""]
        self.text = cache(tag_text)
        self._numbers = {"": 0}

    def number(self, text: str) -> int:
        known = self._numbers.setdefault(text, len(self.texts))
        if known == len(self.texts):
            self.texts.append(text)
        return known

    def numbers(self, tags: NDArray[Any]) -> NDArray[Any]:
        used, place = np.unique(tags, return_inverse=True)
        return np.array([self.number(self.text(tag)) for tag in used.tolist()], np.int64)[place]


def _lifetimes(events: Events) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Which allocation each event is about.

    Returns ids (number of the alloc in order; -2: of a block that was there before; -1: no block),
    the first event at each address that has any about a block, and where the id is a number.
    """
    count = len(events)
    ids = np.full(count, -1, dtype=np.int64)
    about = np.flatnonzero(np.isin(events["action"], _OF_BLOCKS))
    if not about.size:
        return ids, about, np.zeros(count, dtype=bool)
    address = events["address"][about]
    order = np.argsort(address, kind="stable")
    rows, address = about[order], address[order]
    alloc = events["action"][rows] == ev.ALLOC
    place = np.arange(len(rows))
    first = np.r_[True, address[1:] != address[:-1]]
    group = np.maximum.accumulate(np.where(first, place, 0))
    last_alloc = np.maximum.accumulate(np.where(alloc, place, -1))
    born_at = np.full(count, -1, dtype=np.int64)
    allocs = np.flatnonzero(events["action"] == ev.ALLOC)
    born_at[allocs] = np.arange(len(allocs))
    known = last_alloc >= group
    ids[rows] = np.where(known, born_at[rows[np.maximum(last_alloc, 0)]], -2)
    born = np.zeros(count, dtype=bool)
    born[rows[known]] = True
    return ids, rows[first], born


def _old_blocks(
    events: Events,
    first_of: NDArray[Any],
    before: State | None,
    after: State | None,
    min_size: int,
    tags: _Tags,
) -> list[_Row]:
    """Blocks that were there before the first event, in address order."""
    known = {row.address: row for row in before.blocks} if before else {}
    found: list[_Row] = []
    for index in first_of.tolist():
        event = events[index]
        if event["action"] == ev.ALLOC:
            continue
        row = known.get(int(event["address"]))
        requested = row.requested if row and row.size == int(event["size"]) else int(event["size"])
        found.append(
            {
                "addr": int(event["address"]),
                "bytes": int(event["size"]),
                "requested": requested,
                "pool": int(event["pool"]),
                "stream": int(event["stream"]),
                "tag": tags.number(tags.text(int(event["tag"])) or (row.tag if row else "")),
                "stack": int(event["stack"]) or (row.stack if row else 0),
                "pending": int(event["action"] == ev.FREE_COMPLETED),
            }
        )
    touched = set(events["address"][first_of].tolist())
    still = after or before
    for row in still.blocks if still else ():
        if row.address in touched or row.state not in (ACTIVE, PENDING):
            continue
        if row.requested >= min_size:
            found.append(_of_row(row, tags))
    return sorted(found, key=lambda row: row["addr"])


def _of_row(row: Block, tags: _Tags) -> _Row:
    return {
        "addr": row.address,
        "bytes": row.size,
        "requested": row.requested,
        "pool": row.pool,
        "tag": tags.number(row.tag),
        "stack": row.stack,
        "pending": int(row.state == PENDING),
    }


def _old_pages(events: Events, before: State | None, after: State | None) -> list[_Row]:
    """Rows that map what was mapped before the first event, in address order."""
    rows = np.flatnonzero(np.isin(events["action"], (ev.MAP, ev.UNMAP)))
    address, first = np.unique(events["address"][rows], return_index=True)
    found = []
    for index in rows[first].tolist():
        event = events[index]
        if event["action"] == ev.UNMAP:
            page = int(event["aux"]) & ev.PAGE_MASK
            found.append((int(event["address"]), int(event["size"]), page))
    touched = set(address.tolist())
    still = after or before
    if still:
        sizes = {row.arena: row.page_size for row in still.arenas}
        for row in still.slots:
            if row.address not in touched and _mapped(row):
                found.append((row.address, sizes[row.arena], row.page))
    return [
        {"op": ord("M"), "id": -1, "addr": addr, "bytes": size, "aux": page}
        for addr, size, page in sorted(found)
    ]


def _mapped(row: Slot) -> bool:
    return row.page >= 0 and not row.stale


def _columns(events: Events, ids: NDArray[Any]) -> dict[str, NDArray[Any]]:
    letters = np.zeros(256, dtype=np.int64)
    for action, letter in ev.LETTERS.items():
        letters[action] = ord(letter)
    alloc = events["action"] == ev.ALLOC
    signed = {name: events[name].astype(np.int64) for name in events.dtype.names or ()}
    return {
        "t_ns": signed["t_ns"],
        "op": letters[events["action"]],
        "id": ids,
        "bytes": signed["size"],
        "stream": signed["stream"],
        "pool": signed["pool"],
        "tag": signed["tag"],
        "addr": signed["address"],
        "aux": np.where(alloc, 0, signed["aux"]),
        "stack": signed["stack"],
        "thread": signed["thread"],
        "requested": np.where(alloc, signed["aux"], 0),
    }


def _used_stacks(
    stacks: Sequence[Sequence[tuple[str, int, str]]], numbers: NDArray[Any]
) -> tuple[list[list[list[Any]]], NDArray[Any]]:
    """The stacks that are there, numbered anew; number 0 is "no stack"."""
    used, place = np.unique(numbers, return_inverse=True)
    table: list[list[list[Any]]] = [[]]
    renumbered = np.zeros(len(used), dtype=np.int64)
    for at, number in enumerate(used.tolist()):
        if 0 < number < len(stacks):
            renumbered[at] = len(table)
            table.append([list(frame) for frame in stacks[number]])
    return table, renumbered[place]


def _pools(state: State) -> list[str]:
    """The names of the pools by number; a pool that has no arena has none here."""
    names = {row.pool: row.pool_name for row in state.arenas}
    return [names.get(pool, "") for pool in range(max(names, default=-1) + 1)]


def _pinned(row: Slot) -> dict[str, Any]:
    pins = [int(row.pins[reason]) for reason in PINS]
    return {"address": int(row.address), "page": int(row.page), "pins": pins}


def _notes(lost: int, min_size: int) -> list[str]:
    notes = []
    if lost:
        notes.append(f"{lost} events were lost: the ring had no room for the oldest")
    if min_size:
        notes.append(f"allocations of less than {min_size} bytes are left out")
    return notes


def _arena(row: Arena) -> dict[str, Any]:
    return {
        "arena": int(row.arena),
        "base": int(row.base),
        "reserved": int(row.reserved),
        "used": int(row.used),
        "page_size": int(row.page_size),
        "pool": int(row.pool),
        "small": int(row.small),
        "pool_name": str(row.pool_name),
    }
