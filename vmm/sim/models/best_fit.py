# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Spans of addresses with their neighbors, and the free ones ordered for a best-fit search."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any

LIVE, FREE, UNMAPPED = 0, 1, 2

ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


class Span:
    """`size` bytes at `address`; ``rounded`` of them are a request's while the span is live.

    ``home`` is whatever the model keeps its spans in; ``use`` numbers what it is used for.
    """

    __slots__ = ("address", "home", "next", "previous", "rounded", "size", "state", "stream", "use")

    def __init__(self, address: int, size: int, state: int, stream: int, home: Any) -> None:
        self.address, self.size, self.state, self.stream = address, size, state, stream
        self.home = home
        self.previous: Span | None = None
        self.next: Span | None = None
        self.rounded = self.use = 0

    def cut(self, size: int) -> Span:
        """Keeps the low `size` bytes; returns the rest, which is a span of the same state."""
        rest = Span(self.address + size, self.size - size, self.state, self.stream, self.home)
        rest.previous, rest.next = self, self.next
        if self.next is not None:
            self.next.previous = rest
        self.next, self.size = rest, size
        return rest

    def absorb_next(self) -> None:
        """Takes the bytes of the span behind it."""
        gone = self.next
        assert gone is not None
        self.size += gone.size
        self.next = gone.next
        if gone.next is not None:
            gone.next.previous = self


class FreeSpans:
    """Free spans in ascending order of (size, address)."""

    __slots__ = ("at", "keys")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.at: dict[int, Span] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Span]:
        """The spans as they are now, whatever happens to them meanwhile."""
        return iter(self.at_least(0))

    def at_least(self, size: int) -> list[Span]:
        """The spans of at least `size` bytes, in order."""
        keys = self.keys
        return [
            self.at[key & ADDRESS_MASK] for key in keys[bisect_left(keys, size << ADDRESS_BITS) :]
        ]

    def add(self, span: Span) -> None:
        """Marks the span free and makes it available."""
        span.state, span.rounded = FREE, 0
        self.at[span.address] = span
        insort(self.keys, span.size << ADDRESS_BITS | span.address)

    def remove(self, span: Span) -> None:
        """Takes out one span."""
        keys = self.keys
        del keys[bisect_left(keys, span.size << ADDRESS_BITS | span.address)]
        del self.at[span.address]

    def take(self, size: int) -> Span | None:
        """Takes out the smallest span of at least `size` bytes, the lowest of several."""
        keys = self.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys):
            return None
        return self.at.pop(keys.pop(at) & ADDRESS_MASK)

    def merge(self, span: Span) -> Span:
        """Joins a span that is in no list with its free neighbors and makes it available."""
        before, after = span.previous, span.next
        if after is not None and after.state == FREE:
            self.remove(after)
            span.absorb_next()
        if before is not None and before.state == FREE:
            self.remove(before)
            before.absorb_next()
            span = before
        self.add(span)
        return span
