# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A torch memory snapshot of one device: the pool as it stood at the end, and what led there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import FormatError
from vmm.sim.trace import Trace

# What torch calls the events; `Snapshot.action` holds positions in this table.
ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "other",
)
(
    ALLOC,
    FREE_REQUESTED,
    FREE_COMPLETED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    SNAPSHOT,
    OOM,
    OTHER,
) = range(len(ACTIONS))

LIVE, PENDING, FREE = "active_allocated", "active_awaiting_free", "inactive"
# Snapshots of some versions spell the middle one differently.
STATES = {LIVE: LIVE, PENDING: PENDING, "active_pending_free": PENDING, FREE: FREE}


@dataclass(eq=False)
class Snapshot:
    """What a snapshot says of one device; all event arrays have the same length n.

    ``segments``: dicts in the order of their addresses, with ``address``, ``total_size``,
    ``stream`` and ``pool`` (positions in the tables), ``segment_type`` (``small`` or ``large``),
    ``is_expandable`` and ``blocks``: dicts that tile the segment, with ``address``, ``size``,
    ``requested_size``, ``state`` (`LIVE`, `PENDING` or `FREE`) and ``stack``.
    Events: ``action`` uint8 (positions in `ACTIONS`), ``addr`` and ``size`` int64 in bytes (an
    allocation's size as requested; ``addr`` of an ``oom`` is what the device had free), ``stream``,
    ``pool``, ``stack``, ``tag`` int32 (positions in the tables), ``t_ns`` int64.
    ``stacks`` are lists of (file, line, function), innermost first; number 0 is empty, as is tag 0.
    ``settings`` are torch's ``allocator_settings``. ``timed`` tells that the events had times.
    """

    source: str
    device: int
    segments: list[dict[str, Any]]
    action: NDArray[np.uint8]
    addr: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int32]
    pool: NDArray[np.int32]
    t_ns: NDArray[np.int64]
    stack: NDArray[np.int32]
    tag: NDArray[np.int32]
    stacks: list[list[tuple[str, int, str]]] = field(default_factory=lambda: [[]])
    tags: list[str] = field(default_factory=lambda: [""])
    streams: list[int] = field(default_factory=lambda: [0])
    pools: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    settings: dict[str, Any] = field(default_factory=dict)
    timed: bool = False
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.action)

    @property
    def reserved(self) -> int:
        """Bytes of all segments at the end."""
        return sum(segment["total_size"] for segment in self.segments)

    def to_trace(self, *, completions: bool = False) -> Trace:
        """The requests as a trace, sizes as asked for, with the columns ``addr`` and ``stack``.

        What was live before the first event is allocated at the start. With `completions` each
        ``free_completed`` becomes a ``c``. The notes in the header count what had to be left out.
        """
        return _Requests(self, completions).trace()


class _Requests:
    """Gives ids to addresses, walking forward through the events."""

    def __init__(self, snapshot: Snapshot, completions: bool) -> None:
        self.snapshot = snapshot
        self.completions = completions
        self.rows: list[tuple[int, ...]] = []
        self.ids = 0
        self.live: dict[int, int] = {}  # address -> id
        self.pending: dict[int, int] = {}
        # Address, size, stream, pool, stack, id of what must have been live at the start.
        self.before: list[tuple[int, int, int, int, int, int]] = []
        self.counts = dict.fromkeys(
            (
                "allocations from before the first event",
                "zero-size requests left out",
                "allocations at a live address: the earlier one ends there",
                "completed frees of unknown blocks left out",
            ),
            0,
        )

    def trace(self) -> Trace:
        s = self.snapshot
        events = zip(
            *(c.tolist() for c in (s.action, s.addr, s.size, s.stream, s.pool, s.stack, s.tag)),
            strict=True,
        )
        for event, row in enumerate(events):
            self._event(event, *row)
        homes = {
            block["address"]: (segment, block)
            for segment in s.segments
            for block in segment["blocks"]
            if block["state"] == LIVE and block["requested_size"] > 0
        }
        for address, (segment, block) in homes.items():
            if address not in self.live:
                where = (segment["stream"], segment["pool"], block["stack"])
                self.before.append((address, block["requested_size"], *where, self._new_id()))
        self.counts["allocations from before the first event"] = len(self.before)
        return self._build()

    def _event(self, event: int, action: int, address: int, size: int, *rest: int) -> None:
        stream, pool = rest[:2]
        if action == ALLOC:
            if size == 0:
                self.counts["zero-size requests left out"] += 1
                return
            if address in self.live:
                self.counts["allocations at a live address: the earlier one ends there"] += 1
                self._row(event, "f", self.live.pop(address), size, address, rest)
            self.live[address] = self._new_id()
            self._row(event, "a", self.live[address], size, address, rest)
        elif action == FREE_REQUESTED:
            if address in self.live:
                self.pending[address] = self.live.pop(address)
            elif size == 0:
                self.counts["zero-size requests left out"] += 1
                return
            else:
                self.pending[address] = self._new_id()
                self.before.append((address, size, stream, pool, 0, self.pending[address]))
            self._row(event, "f", self.pending[address], size, address, rest)
        elif action == FREE_COMPLETED:
            if address not in self.pending:
                self.counts["completed frees of unknown blocks left out"] += size > 0
            elif self.completions:
                self._row(event, "c", self.pending[address], size, address, rest)
            self.pending.pop(address, None)
        elif action == OOM:
            self._row(event, "o", -1, size, 0, rest)

    def _row(
        self, event: int, op: str, id: int, size: int, address: int, rest: tuple[int, ...]
    ) -> None:
        stream, pool, stack, tag = rest
        self.rows.append((event, ord(op), id, size, stream, pool, tag, address, stack))

    def _new_id(self) -> int:
        self.ids += 1
        return self.ids - 1

    def _build(self) -> Trace:
        s = self.snapshot
        start = [
            (0, ord("a"), id, size, stream, pool, 0, address, stack)
            for address, size, stream, pool, stack, id in sorted(self.before)
        ]
        table = np.array(start + self.rows, dtype=np.int64).reshape(-1, 9)
        header = {
            "source": s.source,
            "device": s.device,
            "tags": s.tags,
            "streams": s.streams,
            "pools": [list(pool) for pool in s.pools],
            "stacks": [[list(frame) for frame in stack] for stack in s.stacks],
            "settings": _plain(s.settings),
            "notes": s.notes + [f"{count} {what}" for what, count in self.counts.items() if count],
        }
        times = np.zeros(len(table), dtype=np.int64)
        if len(s):
            times[len(start) :] = s.t_ns[table[len(start) :, 0]] - s.t_ns[0]
        columns = dict(
            zip(("op", "id", "bytes", "stream", "pool", "tag"), table.T[1:7], strict=True)
        )
        trace = Trace(
            header, t_ns=times, **columns, extra={"addr": table[:, 7], "stack": table[:, 8]}
        )
        return trace.validate()


def check_segments(segments: list[dict[str, Any]]) -> None:
    """Raises FormatError unless blocks tile their segments and segments do not overlap."""
    end = -1
    for segment in segments:
        place = segment["address"]
        if place < end:
            raise FormatError(f"the segment at {place:#x} overlaps the one before it")
        for block in segment["blocks"]:
            if block["address"] != place or block["size"] < 1:
                raise FormatError(
                    f"the blocks of the segment at {segment['address']:#x} do not tile it: a block"
                    f" of {block['size']} bytes is at {block['address']:#x}, not {place:#x}"
                )
            place += block["size"]
        end = segment["address"] + segment["total_size"]
        if place != end:
            raise FormatError(
                f"the segment at {segment['address']:#x} has {segment['total_size']} bytes, its"
                f" blocks {place - segment['address']}"
            )


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings that are texts and numbers, and tables of these, as JSON has them."""
    simple = str | int | float | None
    tables = {
        str(name): {
            str(key): item
            for key, item in value.items()
            if isinstance(key, str | int) and isinstance(item, simple)
        }
        for name, value in settings.items()
        if isinstance(name, str) and isinstance(value, dict)
    }
    return tables | {
        name: value
        for name, value in settings.items()
        if isinstance(name, str) and isinstance(value, simple)
    }
