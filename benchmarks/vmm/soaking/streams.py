# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Watches that memory is used again only after the work on it, on the logical clock.

Work on a block that is freed ends when its streams have done what they had queued then. Until that
time its addresses must keep the pages that were behind them, and whoever is given the same physical
bytes must be on a stream that starts later: the same one, or one that the core has made wait.
"""

from __future__ import annotations

from typing import Any, NamedTuple

WAIT = 7  # vmm_action


class Piece(NamedTuple):
    """Bytes [low, high) of a physical page, seen at `address`, in use until `done` ns."""

    page: int
    low: int
    high: int
    address: int
    done: int


class ViolationError(AssertionError):
    pass


class Streams:
    """A model of the streams of the host driver, without lag.

    How long a wait takes depends on when the core recorded the event, which nobody tells. So the
    model knows two times: work ends at `earliest` or later, and what is queued now starts at
    `latest` or earlier. What it calls a violation is one.
    """

    def __init__(self, allocator: Any, page_size: int) -> None:
        self._allocator = allocator
        self._page = page_size
        self._earliest: dict[int, int] = {}  # without waits
        self._latest: dict[int, int] = {}  # with waits for all that the other stream had queued
        self._work: list[Piece] = []
        self.now = 0
        self.checked = 0

    def set(self, now: int) -> None:
        self.now = max(self.now, now)
        self._work = [piece for piece in self._work if piece.done > self.now]

    def kernel(self, stream: int, ns: int) -> None:
        self._earliest[stream] = self.end(stream) + ns
        self._latest[stream] = self.start(stream) + ns

    def end(self, stream: int) -> int:
        """When what the stream has queued ends, at the earliest."""
        return max(self._earliest.get(stream, 0), self.now)

    def start(self, stream: int) -> int:
        """When work that is queued now starts, at the latest."""
        return max(self._latest.get(stream, 0), self.now)

    def waits(self, events: Any) -> None:
        """Takes over what a recording of the core says about the clock and about waits."""
        handles: list[int] = []
        for event in events:
            self.set(int(event["t_ns"]))
            if event["action"] == WAIT:
                handles = handles or self._allocator.streams()
                waiter, other = handles[event["stream"]], handles[event["aux"]]
                self._latest[waiter] = max(self.start(waiter), self.start(other))

    def pieces(self, at: int, size: int, slots: dict[int, int], done: int) -> list[Piece]:
        found = []
        for begin in range(at // self._page * self._page, at + size, self._page):
            low, high = max(at, begin), min(at + size, begin + self._page)
            page = slots.get(begin, -1)
            found.append(Piece(page, low - begin, high - begin, begin, done))
        return found

    def freed(self, at: int, size: int, streams: set[int], slots: dict[int, int]) -> None:
        done = max(self.end(stream) for stream in streams)
        if done > self.now:
            self._work += [p for p in self.pieces(at, size, slots, done) if p.page >= 0]

    def open(self) -> bool:
        return bool(self._work)

    def check_given(self, at: int, size: int, stream: int, slots: dict[int, int]) -> None:
        start = self.start(stream)
        for new in self.pieces(at, size, slots, 0):
            if new.page < 0:
                raise ViolationError(f"{at:#x}: no page behind {new.address:#x} of a new block")
            for old in self._work:
                overlap = old.page == new.page and old.low < new.high and new.low < old.high
                if overlap and old.done > start:
                    raise ViolationError(
                        f"{at:#x} on stream {stream} starts at {start} ns, but physical page "
                        f"{old.page} is in use from {old.address:#x} until {old.done} ns"
                    )
        self.checked += 1

    def check_mapped(self, slots: dict[int, int]) -> None:
        """Every address with open work still has the page that it had."""
        for old in self._work:
            if old.done > self.now and slots.get(old.address, -1) != old.page:
                raise ViolationError(
                    f"{old.address:#x} had page {old.page} and work until {old.done} ns, but has "
                    f"{slots.get(old.address, -1)} at {self.now} ns"
                )
