# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Takes events out of the ring of an allocator and makes a recording of them.

Nothing runs in the background: the ring is emptied when the recorder is asked to (`drain`), when a
region begins or ends, and at the end. A ring that is full forgets its oldest events; those that
were taken before them are left out as well, so that a recording has no gap.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from vmm.allocator import tag_text
from vmm.errors import Dead, Invalid
from vmm.observe.convert import to_trace
from vmm.observe.events import Events, no_events
from vmm.observe.recording import Recording
from vmm.observe.spool import Spool
from vmm.observe.spool import read as read_spool
from vmm.observe.stacks import STACKS, check_kind, install
from vmm.observe.state import State, read_states
from vmm.observe.target import resolve

if TYPE_CHECKING:
    from vmm.allocator import Allocator

# A state that no event contradicts is looked for this often before it is taken as it is.
_TRIES = 20
_READ_FIRST, _READ_NEXT = 1 << 9, 1 << 16
# An allocator has one ring.
_ACTIVE: dict[int, Recorder] = {}
_ACTIVE_LOCK = threading.Lock()


def active(allocator: Allocator) -> Recorder | None:
    """The recorder that runs on an allocator now, if any."""
    found = _ACTIVE.get(allocator.handle)
    # A new allocator may have the number of one that was closed while it was recorded.
    return None if found is None or found.dead else found


class Recorder:
    """A recording that runs from `start` to `stop`; a context manager does both.

    After `stop`, ``recording`` holds the result.
    """

    def __init__(
        self,
        max_entries: int = 1_000_000,
        stacks: str = "none",
        min_size: int = 0,
        spool: str | os.PathLike[str] | None = None,
        allocator: Allocator | None = None,
    ) -> None:
        if isinstance(max_entries, bool) or not isinstance(max_entries, int) or max_entries < 1:
            raise Invalid(f"max_entries: must be a whole number from 1, but is {max_entries!r}")
        if isinstance(min_size, bool) or not isinstance(min_size, int) or min_size < 0:
            raise Invalid(f"min_size: must be a number of bytes from 0, but is {min_size!r}")
        self.max_entries, self.min_size = max_entries, min_size
        self.stacks = check_kind(stacks)
        self.overwritten = 0  # by the ring, before they were read
        self.recording: Recording | None = None
        self._folder = spool
        self._spool: Spool | None = None
        self._last_tag = 0
        self._allocator = allocator
        self._before: dict[int, State] = {}
        self._parts: list[Events] = []
        self._kept = self._given_up = 0
        self._followers: list[list[Events]] = []
        self._lock = threading.RLock()

    @property
    def allocator(self) -> Allocator:
        """The allocator that is recorded."""
        self._allocator = resolve(self._allocator)
        return self._allocator

    @property
    def lost(self) -> int:
        """Events that are not in the recording: the ring forgot them, or some that came after."""
        return self.overwritten + self._given_up

    @property
    def dead(self) -> bool:
        """Whether the allocator was closed."""
        try:
            return self.allocator.handle == 0
        except Dead:
            return True

    def start(self) -> Recorder:
        """Begins to record. Raises `vmm.errors.Invalid` if a recording of the allocator runs."""
        allocator = self.allocator
        with _ACTIVE_LOCK:
            if active(allocator) is not None:
                raise Invalid("record: a recording of this allocator runs already; stop it first")
            if self._folder is not None:
                self._spool = Spool(self._folder)
            with_stacks = install(self.stacks)
            self._parts, self.recording = [], None
            self.overwritten = self._kept = self._given_up = 0
            self._last_tag = 0
            self._before = read_states(allocator)
            allocator.record_start(
                capacity=self.max_entries, min_size=self.min_size, stacks=with_stacks
            )
            _ACTIVE[allocator.handle] = self
        return self

    def drain(self) -> int:
        """Takes what is in the ring, to memory or to the spool. Returns the number of events."""
        with self._lock:
            count, room = 0, _READ_FIRST
            while True:
                part, overwritten = self.allocator.record_read(room)
                if overwritten > self.overwritten and self._kept:
                    self._give_up()
                self.overwritten = overwritten
                if len(part):
                    self._keep(part)
                count += len(part)
                if len(part) < room:
                    return count
                room = _READ_NEXT

    def _keep(self, part: Events) -> None:
        self._kept += len(part)
        for follower in self._followers:
            follower.append(part)
        if self._spool is None:
            self._parts.append(part)
        else:
            self._spool.append(part, self._tables(part))

    def _give_up(self) -> None:
        """Leaves out what was taken so far. Events are missing after it, and without them nobody
        knows which of these blocks lived on."""
        self._given_up += self._kept
        self._kept, self._parts, self._before = 0, [], {}
        if self._spool is not None:
            self._spool.begin_anew()

    def follow(self) -> list[Events]:
        """A list that gets every part of the events from now on, until `unfollow`."""
        with self._lock:
            self.drain()
            parts: list[Events] = []
            self._followers.append(parts)
            return parts

    def unfollow(self, parts: list[Events]) -> Events:
        """All events since `follow` gave this list."""
        with self._lock:
            if active(self.allocator) is self:
                self.drain()
            self._followers = [one for one in self._followers if one is not parts]
            return np.concatenate([no_events(), *parts])

    def stop(self) -> Recording:
        """Ends the recording and returns it. A second call returns the same."""
        if self.recording is not None:
            return self.recording
        with self._lock:
            if active(self.allocator) is not self:
                raise Invalid("record: the recording has not been started")
            try:
                after = self._settled()
            finally:
                self.allocator.record_stop()
                with _ACTIVE_LOCK:
                    _ACTIVE.pop(self.allocator.handle, None)
            self.recording = self._recording(after)
            self._parts = []
        return self.recording

    def peek(self) -> Recording:
        """The recording as far as it is; it goes on. After `stop`, what that returned."""
        with self._lock:
            if self.recording is not None:
                return self.recording
            if active(self.allocator) is not self:
                raise Invalid("record: the recording has not been started")
            return self._recording(self._settled())

    def _settled(self) -> dict[int, State]:
        """The state at a moment that the events taken so far lead to."""
        after: dict[int, State] = {}
        self.drain()
        for _ in range(_TRIES):
            after = read_states(self.allocator)
            if self.drain() == 0:
                break
        return after

    def _events(self) -> Events:
        if self._spool is None:
            return np.concatenate([no_events(), *self._parts])
        return read_spool(self._spool.folder)[0]

    def _recording(self, after: dict[int, State]) -> Recording:
        events = self._events()
        traces = {
            device: to_trace(
                events,
                device=device,
                before=self._before.get(device),
                after=state,
                streams=self.allocator.streams(),
                tag_text=tag_text,
                stacks=STACKS.table,
                min_size=self.min_size,
                lost=self.lost,
            )
            for device, state in after.items()
        }
        used = {device: trace for device, trace in traces.items() if len(trace) or device == 0}
        return Recording(used, self.lost)

    def _tables(self, part: Events) -> dict[str, Any]:
        self._last_tag = max(self._last_tag, int(part["tag"].max(initial=0)))
        return {
            "tags": [tag_text(tag) for tag in range(self._last_tag + 1)],
            "streams": list(self.allocator.streams()),
            "stacks": STACKS.table if self.stacks != "none" else [[]],
            "lost": self.lost,
            "min_size": self.min_size,
        }

    def __enter__(self) -> Recorder:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
