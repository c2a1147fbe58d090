# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch's caching allocator with ``expandable_segments:True``.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.13: for each stream, and for small and large
requests apart, a range of addresses that is mapped page by page as it is needed. Pages go back to
the driver only when it has no more, after the stream that owns them was waited for.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from math import lcm

from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.best_fit import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    FREE,
    LIVE,
    UNMAPPED,
    FreeSpans,
    Span,
)
from vmm.sim.models.options import LAG, Option, read_options
from vmm.sim.models.streams import StreamSafe
from vmm.sim.models.torch_settings import MIB, MIN_BLOCK, SMALL_LIMIT

OPTIONS = {
    "lag_ns": LAG,
    "small_page_mb": Option(2, 2, None, "MiB of a page for requests up to 1 MiB"),
    "large_page_mb": Option(20, 2, None, "MiB of a page for larger requests"),
}

_FIRST_ADDRESS = 1 << 40
_ENDLESS = 1 << 40  # the addresses of a segment where the capacity has no limit


class Group:
    """The segments of one (stream, small or large, pool)."""

    __slots__ = ("free", "page", "pool", "stream", "unmapped", "unmapped_at")

    def __init__(self, stream: int, pool: int, page: int) -> None:
        self.stream, self.pool, self.page = stream, pool, page
        self.free = FreeSpans()
        self.unmapped: list[int] = []  # ascending addresses
        self.unmapped_at: dict[int, Span] = {}

    def add_unmapped(self, span: Span) -> None:
        """Keeps a span without pages."""
        insort(self.unmapped, span.address)
        self.unmapped_at[span.address] = span

    def remove_unmapped(self, span: Span) -> None:
        """Takes out a span without pages."""
        del self.unmapped[bisect_left(self.unmapped, span.address)]
        del self.unmapped_at[span.address]


class TorchExpandable(StreamSafe[Span]):
    """The allocator of one device.

    `capacity` in bytes limits the mapped pages, None for no limit. Options: those of `OPTIONS`.
    Pool 0 is the common one; any other number is a private pool, whose pages stay until
    `release_pool`. Raises `vmm.errors.Invalid`.
    """

    name = "torch_expandable"

    def __init__(self, capacity: int | None = None, **options: object) -> None:
        values = read_options(self.name, OPTIONS, options)
        super().__init__(capacity, values["lag_ns"])
        self._pages = (values["large_page_mb"] * MIB, values["small_page_mb"] * MIB)
        self._groups: dict[tuple[int, bool, int], Group] = {}
        self._released: set[int] = set()  # private pools nobody allocates from any more
        self._alignment = lcm(*self._pages)
        self._bump = _FIRST_ADDRESS

    # ---- Blocks ----

    def _place(self, size: int, stream: int, pool: int) -> Span:
        rounded = -(-size // MIN_BLOCK) * MIN_BLOCK if size else MIN_BLOCK
        group = self._group(stream, rounded <= SMALL_LIMIT, pool)
        block = self._take(group, rounded) or self._grow(group, rounded)
        if block is None:
            self._release_cached()
            self.counters["retries"] += 1
            block = self._grow(group, rounded)
            if block is None:
                raise OutOfMemory(
                    f"{size} bytes need more pages of {group.page}, but {self.reserved} bytes of"
                    f" {self.capacity} are mapped"
                )
        if block.size - rounded >= MIN_BLOCK:
            group.free.add(block.cut(rounded))
        block.state, block.rounded = LIVE, rounded
        return block

    def _release(self, block: Span) -> None:
        block.home.free.merge(block)

    def release_pool(self, pool: int) -> None:
        """Nobody allocates from a private pool any more: its pages can be given back."""
        if pool:
            self._released.add(pool)

    def blocks(self) -> list[Span]:
        """All blocks, also those without pages, in the order of their addresses."""
        spans = {id(span): span for group in self._groups.values() for span in group.free}
        for group in self._groups.values():
            spans.update((id(span), span) for span in group.unmapped_at.values())
        spans.update((id(block), block) for block in self._held.values())
        spans.update((id(b), b) for queue in self._deferred.values() for _, _, b in queue)
        return sorted(spans.values(), key=lambda span: span.address)

    # ---- Inside ----

    def _group(self, stream: int, small: bool, pool: int) -> Group:
        group = self._groups.get((stream, small, pool))
        if group is None:
            group = Group(stream, pool, self._pages[small])
            self._groups[stream, small, pool] = group
        if self._released:
            self._released.discard(pool)
        return group

    def _take(self, group: Group, rounded: int) -> Span | None:
        """Best fit, where unmapped addresses behind a block count as a part of it."""
        keys, spans = group.free.keys, group.free.at
        at = bisect_left(keys, rounded << ADDRESS_BITS)
        if at == len(keys):
            return None
        reach = _reach(spans[keys[at] & ADDRESS_MASK])
        # Only a block that can grow may be beaten by one that is larger now.
        while at + 1 < len(keys):
            following = _reach(spans[keys[at + 1] & ADDRESS_MASK])
            if following >= reach:
                break
            at, reach = at + 1, following
        return spans.pop(keys.pop(at) & ADDRESS_MASK)

    def _grow(self, group: Group, rounded: int) -> Span | None:
        """A block of free and unmapped neighbors with the pages it lacks, in no list."""
        block = self._room(group, rounded)
        if block is None:
            return None
        if block.state == UNMAPPED:
            grown = self._map(group, block, min(block.size, rounded))
            if grown is None:
                return None
            block = grown
        while block.size < rounded:
            following = block.next
            assert following is not None
            grown = self._map(group, following, min(rounded - block.size, following.size))
            if grown is None:
                return None
            block = grown
        group.free.remove(block)
        return block

    def _room(self, group: Group, rounded: int) -> Span | None:
        """The first of the lowest neighbors that have addresses enough; a new segment's if none."""
        for address in group.unmapped:
            first = group.unmapped_at[address]
            if first.previous is not None and first.previous.state == FREE:
                first = first.previous
            room, span = 0, first
            while room < rounded and span.state != LIVE:
                room += span.size
                if span.next is None:
                    break
                span = span.next
            if room >= rounded:
                return first
        size = _ENDLESS if self.capacity is None else self.capacity * 9 // 8
        size = -(-size // group.page) * group.page
        if size < rounded:
            return None
        segment = Span(self._bump, size, UNMAPPED, group.stream, group)
        self._bump += -(-size // self._alignment) * self._alignment
        group.add_unmapped(segment)
        return segment

    def _map(self, group: Group, span: Span, size: int) -> Span | None:
        """Maps the pages of the low `size` bytes; the free block they are in, None if they lack."""
        pages = -(-size // group.page)
        mapped = pages * group.page
        if not self._fits(mapped):
            return None
        self.reserved += mapped
        self.counters["device_alloc"] += pages
        self.counters["maps"] += pages
        group.remove_unmapped(span)
        if mapped < span.size:
            group.add_unmapped(span.cut(mapped))
        return group.free.merge(span)

    def _release_cached(self) -> None:
        """Waits for all events, then unmaps every page that is wholly free."""
        self._wait_deferred()
        waited: set[int] = set()
        order = sorted(self._groups.items(), key=lambda item: (item[0][1], item[0][0]))
        for (stream, _, pool), group in order:
            if pool and pool not in self._released:
                continue
            for span in group.free.at_least(group.page):
                pages = self._unmap(group, span)
                if pages and stream not in waited:
                    waited.add(stream)
                    self.counters["syncs"] += 1
                    self.sync(stream)

    def _unmap(self, group: Group, span: Span) -> int:
        """Unmaps the pages that are wholly in a free block; returns their number."""
        page = group.page
        # Segments start at a multiple of the page, counted from the first address of all.
        begin = -(-(span.address - _FIRST_ADDRESS) // page) * page + _FIRST_ADDRESS
        end = (span.address + span.size - _FIRST_ADDRESS) // page * page + _FIRST_ADDRESS
        if begin >= end:
            return 0
        group.free.remove(span)
        if begin > span.address:
            middle = span.cut(begin - span.address)
            group.free.add(span)
            span = middle
        if end < span.address + span.size:
            group.free.add(span.cut(end - span.address))
        pages = (end - begin) // page
        self.reserved -= end - begin
        self.counters["device_free"] += pages
        self.counters["unmaps"] += pages
        span.state = UNMAPPED
        before, after = span.previous, span.next
        if after is not None and after.state == UNMAPPED:
            group.remove_unmapped(after)
            span.absorb_next()
        if before is not None and before.state == UNMAPPED:
            group.remove_unmapped(before)
            before.absorb_next()
            span = before
        if span.previous is not None or span.next is not None:
            group.add_unmapped(span)
        return pages


def _reach(span: Span) -> int:
    """What a free block could hold if the unmapped addresses behind it had pages."""
    following = span.next
    if following is not None and following.state == UNMAPPED:
        return span.size + following.size
    return span.size
