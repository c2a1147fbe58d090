# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A named stretch of a program, and what it does to memory."""

from __future__ import annotations

import threading
from contextlib import ContextDecorator
from types import TracebackType
from typing import TYPE_CHECKING

from vmm import native
from vmm.allocator import tag_text
from vmm.errors import Invalid
from vmm.observe import events as ev
from vmm.observe import notes, recorder, region_counts
from vmm.observe.events import Events
from vmm.observe.region_counts import Counts, Survivor
from vmm.observe.stacks import STACKS
from vmm.observe.state import State
from vmm.observe.target import device_index, resolve
from vmm.observe.text import bytes_text, new_table, table_text

if TYPE_CHECKING:
    from vmm.allocator import Allocator

THREADS = ("all", "own")
_SEPARATOR = "/"
_SHOWN = 10


class _Names(threading.local):
    """The names of the regions that this thread is in, outermost first."""

    def __init__(self) -> None:
        self.open: list[str] = []


_NAMES = _Names()
# While one thread learns its number from the note it makes, no other makes the same.
_BEGIN = threading.Lock()


class Region(ContextDecorator):
    """Counts what happens between entering and leaving; also a decorator.

    While it is open, allocations of this thread that bring no tag get its ``path`` as tag: the
    names of all regions that the thread is in, with slashes between. After it, ``counts`` and
    ``survivors`` hold what happened. As a decorator, every call is a region of its own and ``last``
    is that of the last call that ended.
    """

    def __init__(
        self,
        name: str,
        *,
        threads: str = "all",
        allocator: Allocator | None = None,
        device: object = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise Invalid(f"name: must be a text that is not empty, but is {name!r}")
        if threads not in THREADS:
            raise Invalid(f"threads: must be one of {', '.join(THREADS)}, but is {threads!r}")
        self.name, self.threads = name, threads
        self.device = device_index(device, allocator)
        self.path = name
        self.last: Region | None = None
        self._allocator = allocator
        self._parent: Region | None = None
        self._open: _Open | None = None
        self._counts: Counts | None = None
        self._survivors: list[Survivor] = []

    @property
    def counts(self) -> Counts:
        """What happened, in numbers. Raises `vmm.errors.Invalid` before the region ended."""
        if self._counts is None:
            raise Invalid(f"region {self.name!r}: it has not ended, so there are no counts yet")
        return self._counts

    @property
    def survivors(self) -> list[Survivor]:
        """Blocks that were born in the region and are live at its end."""
        return self._survivors if self.counts else []

    def table(self) -> str:
        """The counts, and the largest survivors, as text."""
        counts = self.counts
        table = new_table(f"Region {self.path}", "what", "number", "bytes")
        table.add_row("allocated", str(counts.allocs), bytes_text(counts.alloc_bytes))
        table.add_row("freed", str(counts.frees), bytes_text(counts.freed_bytes))
        table.add_row("net", str(counts.allocs - counts.frees), bytes_text(counts.net))
        table.add_row("live before", "", bytes_text(counts.live_before))
        table.add_row("live after", "", bytes_text(counts.live_after))
        peak = "" if counts.peak_exact else "at least "
        table.add_row("peak inside", "", peak + bytes_text(counts.peak))
        for name in ("steals", "waits", "syncs", "ooms", "lost"):
            table.add_row(name, str(getattr(counts, name)), "")
        total = sum(block.size for block in self._survivors)
        table.add_row("survivors", str(len(self._survivors)), bytes_text(total))
        if not self._survivors:
            return table_text(table)
        largest = sorted(self._survivors, key=lambda block: -block.size)[:_SHOWN]
        rows = new_table(f"Largest {len(largest)} survivors", "address", "bytes", "tag", "born at")
        for block in largest:
            place = f"{block.stack[0][0]}:{block.stack[0][1]}" if block.stack else ""
            rows.add_row(hex(block.address), bytes_text(block.size), block.tag, place)
        return table_text(table, rows)

    def __enter__(self) -> Region:
        if self._open is not None:
            raise Invalid(f"region {self.name!r}: it is open already; make another one")
        self.path = _SEPARATOR.join([*_NAMES.open, self.name])
        self._open = _Open(self, resolve(self._allocator))
        _NAMES.open.append(self.name)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        opened, self._open = self._open, None
        if opened is None:
            raise Invalid(f"region {self.name!r}: it is not open")
        _NAMES.open.pop()
        self._counts, self._survivors = opened.close()
        if self._parent is not None:
            self._parent.last = self

    def _recreate_cm(self) -> Region:
        made = Region(
            self.name, threads=self.threads, allocator=self._allocator, device=self.device
        )
        made._parent = self
        return made


def _light_state(allocator: Allocator, device: int) -> State:
    blocks = allocator.blocks(device=device)
    return State(device, blocks, stats=allocator.stats(device=device))


class _Open:
    """What a region keeps while it is open."""

    def __init__(self, region: Region, allocator: Allocator) -> None:
        self.region, self.allocator, self.device = region, allocator, region.device
        self.recorder = recorder.active(allocator)
        if region.threads == "own" and self.recorder is None:
            raise Invalid("threads: 'own' needs a recording that runs (vmm.record)")
        self.before: State | None = None
        self.parts: list[Events] = []
        self.thread: int | None = None
        self.lost = self.live = 0
        core = native.library()
        if self.recorder is None:
            self.before = _light_state(allocator, self.device)
        else:
            self._begin(self.recorder)
        self.old_tag: int = core.vmm_set_thread_tag(core.vmm_intern_tag(region.path.encode()))

    def _begin(self, running: recorder.Recorder) -> None:
        text = notes.begin(self.region.path)
        with _BEGIN:
            self.parts = running.follow()
            self.lost = running.overwritten
            self.live = self.allocator.stats(device=self.device)["allocated_bytes.all.current"]
            self.allocator.note(text, device=self.device)
            if self.region.threads == "all":
                return
            running.drain()
            tag = native.library().vmm_intern_tag(text.encode())
            for part in self.parts:
                own = part[(part["action"] == ev.NOTE) & (part["tag"] == tag)]
                if len(own):
                    self.thread = int(own["thread"][-1])

    def close(self) -> tuple[Counts, list[Survivor]]:
        native.library().vmm_set_thread_tag(self.old_tag)
        if self.before is not None:
            after = _light_state(self.allocator, self.device)
            found = region_counts.survivors_of_states(self.before, after, STACKS.table)
            return region_counts.from_states(self.before, after), found
        running = self.recorder
        assert running is not None
        self.allocator.note(notes.end(self.region.path), device=self.device)
        events = running.unfollow(self.parts)
        counts = region_counts.from_events(
            events,
            device=self.device,
            live_before=self.live,
            thread=self.thread,
            lost=running.overwritten - self.lost,
        )
        found = region_counts.survivors_of_events(
            events,
            device=self.device,
            thread=self.thread,
            tag_text=tag_text,
            stacks=STACKS.table,
        )
        return counts, found
