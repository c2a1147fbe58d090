# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings as snapshots of torch, for pytorch.org/memory_viz and torch.cuda._memory_viz.

The page walks backwards from the final segments, so what it is given has to be consistent at every
entry: a page that changes its address is unmapped there and then mapped here, a block lies on
mapped pages from its alloc to its completed free, and segments of different arenas stay apart.
"""

from __future__ import annotations

import gc
import os
import pickle
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid
from vmm.observe.events import CAUSE_SHIFT, CAUSE_SLEEP
from vmm.observe.torch_layout import Arenas, Block, Layout

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

# The page reads numbers as doubles, and every address in user space of x86-64 is below this.
ADDRESS_LIMIT = 1 << 47
PENDING_NAMES = ("active_awaiting_free", "active_pending_free")
_SETTINGS = {
    "backend": "vmm",
    "expandable_segments": True,
    "garbage_collection_threshold": 0.0,
    "max_split_size": -1,
    "roundup_power2_divisions": {},
}


def snapshot_of(
    traces: Mapping[int, Trace], *, pending_name: str = PENDING_NAMES[0]
) -> dict[str, Any]:
    """The traces of recordings (by device) as a dictionary like `torch.cuda.memory._snapshot`.

    Sizes of entries are those asked for, as in torch; blocks of segments have both. Tags become
    ``category``. Blocks of a sleeping pool count as freed until it wakes. Raises
    `vmm.errors.Invalid` for addresses from 2^47, and for traces without addresses or pages.
    """
    if pending_name not in PENDING_NAMES:
        raise Invalid(f"pending_name: must be one of {PENDING_NAMES}, but is {pending_name!r}")
    segments: list[dict[str, Any]] = []
    device_traces: list[list[dict[str, Any]]] = [[] for _ in range(max(traces, default=-1) + 1)]
    for device, trace in sorted(traces.items()):
        walk = _Walk(trace)
        with _without_collector():
            walk.run()
        segments += walk.layout.segments(device, walk.frames, pending_name)
        device_traces[device] = walk.entries
    return {
        "segments": segments,
        "device_traces": device_traces,
        "allocator_settings": dict(_SETTINGS),
    }


def write(path: str | os.PathLike[str], snapshot: dict[str, Any]) -> None:
    """Pickles a snapshot with protocol 4, of which the page reads what plain data needs."""
    from vmm.sim.atomic_file import new_file

    with new_file(path) as file:
        pickle.dump(snapshot, file, protocol=4)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of dictionaries without a cycle: going over them again and again takes longer than
    making them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Walk:
    """Goes through a trace once, keeps what is mapped and live, and writes the entries."""

    def __init__(self, trace: Trace) -> None:
        if "addr" not in trace.extra:
            raise Invalid("trace: a snapshot needs addresses, but it has no column addr")
        if trace.is_op("a").any() and not trace.is_op("M").any():
            raise Invalid(
                "trace: a snapshot needs the pages under its blocks, but it has no M rows"
            )
        self.trace = trace
        end = int((trace.extra["addr"] + trace.bytes * trace.is_op("afcrMU")).max(initial=0))
        if end > ADDRESS_LIMIT:
            raise Invalid(f"trace: addresses must be below 2^47, but go up to {end}")
        self.layout = Layout(Arenas(trace.header.get("arenas", [])), {}, {}, {})
        self.frames = [
            [{"filename": file, "line": line, "name": name} for file, line, name in stack]
            for stack in trace.header.get("stacks", [[]])
        ]
        self.streams: list[int] = trace.header.get("streams", [0])
        self.tags: list[str] = trace.header.get("tags", [""])
        self.with_category = bool((trace.tag[trace.op == ord("a")] > 0).any())
        self.entries: list[dict[str, Any]] = []
        self.asleep: dict[int, Block] = {}
        # Pages that went and came since the last other event, in no order yet.
        self.gone: dict[int, int] = {}
        self.come: dict[int, int] = {}
        self.sleeping = self.waking = False
        self.at_us = 0
        self.silent = True

    def run(self) -> None:
        trace = self.trace
        initial = int(trace.header.get("initial_rows", 0))
        zeros = [0] * len(trace)
        extra = trace.extra
        columns = [trace.t_ns, trace.op, trace.bytes, trace.stream, trace.pool, trace.tag]
        optional = [extra[n].tolist() if n in extra else zeros for n in ("aux", "stack")]
        asked = extra.get("requested", trace.bytes)
        rows = zip(
            *(column.tolist() for column in columns),
            extra["addr"].tolist(),
            asked.tolist(),
            *optional,
            strict=True,
        )
        for number, row in enumerate(rows):
            t, op, size, stream, pool, tag, addr, requested, aux, stack = row
            if number == initial:
                self._begin()
            letter = chr(op)
            if letter == "M":
                self._map(addr, size, aux >> CAUSE_SHIFT)
                self.at_us = t // 1000
                continue
            if letter == "U":
                self._unmap(addr, size, aux >> CAUSE_SHIFT)
                self.at_us = t // 1000
                continue
            if self.gone or self.come:
                self._flush()
            self.at_us = t // 1000
            if letter == "a":
                handle = self.streams[stream] if stream < len(self.streams) else stream
                self._alloc(Block(addr, size, requested or size, pool, handle, stack, tag))
            elif letter == "f":
                self._free(addr)
            elif letter == "c":
                self._complete(addr)
            elif letter == "o":
                self._add("oom", device_free=aux, size=size, stream=0, frames=[], pool_id=(0, pool))
        self._flush()
        if initial == len(trace):
            self._begin()
        if self.with_category and not any(e.get("category") == "unknown" for e in self.entries):
            # The page looks this name up whenever there are categories.
            self._name_unknown()

    def _name_unknown(self) -> None:
        for entry in self.entries:
            if "category" not in entry:
                entry["category"] = "unknown"
                return
        frames: list[dict[str, Any]] = []
        self._add("snapshot", addr=0, size=0, stream=0, frames=frames, category="unknown")

    def _begin(self) -> None:
        """The first rows were what was there: from here on, rows are events."""
        self._flush()
        self.silent = False
        runs = list(self.layout.arenas.runs(self.layout.pages))
        for block in self._outside(list(self.layout.live.values()), runs):
            self.asleep[block.address] = self.layout.live.pop(block.address)

    def _alloc(self, block: Block) -> None:
        self.layout.live[block.address] = block
        category = {"category": self._category(block)} if self.with_category else {}
        self._add_block("alloc", block, **category)

    def _free(self, address: int) -> None:
        if address in self.asleep:
            del self.asleep[address]
            return
        block = self.layout.live.pop(address, None)
        if block is not None:
            self.layout.pending[address] = block
            self._add_block("free_requested", block)

    def _complete(self, address: int) -> None:
        block = self.layout.pending.pop(address, None)
        if block is not None:
            self._add_block("free_completed", block)

    def _map(self, address: int, size: int, cause: int) -> None:
        if address in self.gone:
            self._flush()
        self.come[address] = size
        self.waking = self.waking or cause == CAUSE_SLEEP

    def _unmap(self, address: int, size: int, cause: int) -> None:
        if address in self.come:
            self._flush()
        if address in self.layout.pages:
            self.gone[address] = size
            self.sleeping = self.sleeping or cause == CAUSE_SLEEP

    def _flush(self) -> None:
        """Writes the changes of pages: those that go before those that come."""
        pages, arenas = self.layout.pages, self.layout.arenas
        if self.sleeping:
            left = {address: size for address, size in pages.items() if address not in self.gone}
            self._hide(list(arenas.runs(left)))
        for changed, action in ((self.gone, "segment_unmap"), (self.come, "segment_map")):
            for address, size in arenas.runs(changed):
                arena = arenas.row(address)
                self._add(
                    action,
                    addr=address,
                    size=size,
                    stream=int(arena["arena"]),
                    frames=[],
                    pool_id=(0, int(arena["pool"])),
                )
        for address in self.gone:
            del pages[address]
        pages.update(self.come)
        self.gone, self.come, self.sleeping = {}, {}, False
        if self.waking:
            self.waking = False
            self._show(list(arenas.runs(pages)))

    def _hide(self, runs: list[tuple[int, int]]) -> None:
        """Blocks that lose their pages to a sleep count as freed."""
        for block in self._outside(list(self.layout.live.values()), runs):
            self._free(block.address)
            self._complete(block.address)
            self.asleep[block.address] = block

    def _show(self, runs: list[tuple[int, int]]) -> None:
        """Blocks that have their pages again count as allocated."""
        still = {block.address for block in self._outside(list(self.asleep.values()), runs)}
        for address, block in list(self.asleep.items()):
            if address not in still:
                del self.asleep[address]
                self._alloc(block)

    @staticmethod
    def _outside(blocks: list[Block], runs: list[tuple[int, int]]) -> list[Block]:
        """The blocks that do not lie in one run of pages."""
        begins = [begin for begin, _ in runs]
        found = []
        for block in blocks:
            at = bisect_right(begins, block.address) - 1
            if at < 0 or block.address + block.size > sum(runs[at]):
                found.append(block)
        return found

    def _category(self, block: Block) -> str:
        text = self.tags[block.tag] if block.tag < len(self.tags) else ""
        return text or "unknown"

    def _add_block(self, action: str, block: Block, **more: Any) -> None:
        frames = self.frames[block.stack] if block.stack < len(self.frames) else []
        self._add(
            action,
            addr=block.address,
            size=block.requested,
            stream=block.stream,
            frames=frames,
            pool_id=(0, block.pool),
            **more,
        )

    def _add(self, action: str, **fields: Any) -> None:
        if not self.silent:
            self.entries.append({"action": action, **fields, "time_us": self.at_us})
