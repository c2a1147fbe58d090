# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Primitive blocks: memory at its home addresses, which may be used through other ones, too.

A range is (first home address, bytes). Whatever is mapped elsewhere is told by its home, so one
state of a home tells whether memory is in use, by whichever address.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

from vmm.sim.models.best_fit import ADDRESS_BITS, ADDRESS_MASK, FREE, LIVE, FreeSpans, Span

Range = tuple[int, int]


class Primitives:
    """The segments of one device, each tiled by spans; a free span lies in its ``home``.

    `merge` says whether a freed span joins its free neighbors in the segment.
    """

    def __init__(self, merge: bool) -> None:
        self.merge = merge
        self.segments: dict[int, tuple[Span, int]] = {}  # address -> first span, bytes
        self._uses = 0
        self._starts: list[int] = []
        self._spans: dict[int, Span] = {}

    def add_segment(self, address: int, size: int, stream: int, home: FreeSpans) -> Span:
        """A new segment as one span that is in no list."""
        span = Span(address, size, LIVE, stream, home)
        self.segments[address] = span, size
        self._know(span)
        return span

    def remove_segment(self, address: int) -> int:
        """Drops a segment that is wholly free; returns its size."""
        for span in list(self.spans(address)):
            span.home.remove(span)
            self._forget(span)
        return self.segments.pop(address)[1]

    def idle_segments(self) -> list[int]:
        """The addresses of the segments of which nothing is in use."""
        return [
            address
            for address, (first, size) in self.segments.items()
            if first.state == FREE
            and (first.size == size or all(span.state == FREE for span in self.spans(address)))
        ]

    def spans(self, segment: int) -> Iterator[Span]:
        """The spans of a segment in the order of their addresses."""
        span: Span | None = self.segments[segment][0]
        while span is not None:
            yield span
            span = span.next

    def take(self, home: FreeSpans, size: int, exact: bool) -> Span | None:
        """The smallest free span of at least `size` bytes, or exactly that, cut to the size."""
        keys = home.keys
        at = bisect_left(keys, size << ADDRESS_BITS)
        if at == len(keys) or (exact and keys[at] >> ADDRESS_BITS != size):
            return None
        span = home.at.pop(keys.pop(at) & ADDRESS_MASK)
        return self.use(span, size)

    def use(self, span: Span, size: int) -> Span:
        """Puts a span that is in no list to use; what is beyond `size` becomes free."""
        if span.size > size:
            rest = span.cut(size)
            self._know(rest)
            span.home.add(rest)
        self._uses += 1
        span.state, span.use = LIVE, self._uses
        return span

    def release(self, span: Span) -> None:
        """Makes a span free, and one with its free neighbors if that is so here."""
        home: FreeSpans = span.home
        span.use = 0
        if self.merge:
            before, after = span.previous, span.next
            if after is not None and after.state == FREE:
                home.remove(after)
                self._forget(after)
                span.absorb_next()
            if before is not None and before.state == FREE:
                home.remove(before)
                self._forget(span)
                before.absorb_next()
                span = before
        home.add(span)

    def first_in_use(self, ranges: Iterable[Range]) -> Span | None:
        """A span in use that has a part of the ranges; it stays one while its ``use`` is the same.

        None if all of the ranges is free.
        """
        for start, size in ranges:
            span = self._at(start)
            while span.state == FREE:
                if span.address + span.size >= start + size or span.next is None:
                    break
                span = span.next
            else:
                return span
        return None

    def use_ranges(self, ranges: Iterable[Range], size: int) -> list[Span]:
        """Puts the first `size` bytes of free ranges to use; the spans that make them up."""
        used = []
        for start, length in ranges:
            end = start + min(length, size)
            size -= end - start
            while start < end:
                span = self._at(start)
                span.home.remove(span)
                if span.address < start:
                    front, span = span, span.cut(start - span.address)
                    self._know(span)
                    front.home.add(front)
                used.append(self.use(span, min(span.size, end - start)))
                start += used[-1].size
        return used

    def _at(self, address: int) -> Span:
        return self._spans[self._starts[bisect_right(self._starts, address) - 1]]

    def _know(self, span: Span) -> None:
        insort(self._starts, span.address)
        self._spans[span.address] = span

    def _forget(self, span: Span) -> None:
        del self._starts[bisect_left(self._starts, span.address)]
        del self._spans[span.address]
