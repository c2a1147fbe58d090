# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paddle's virtual-memory ``auto_growth``, the first generation, which 3.3 ships.

Follows VirtualMemoryAutoGrowthBestFitAllocator under StreamSafeCUDAAllocator: for each stream one
range of addresses that only grows, best fit, split requests take the front (PaddlePaddle/Paddle
#75323), a miss asks the driver only for what the free tail lacks. Nothing is given back. With
``compact`` live blocks are copied down when memory runs out, so their addresses change.
"""

from __future__ import annotations

from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.best_fit import FREE, LIVE, FreeSpans, Span
from vmm.sim.models.options import LAG, Option, read_options
from vmm.sim.models.streams import StreamSafe
from vmm.sim.models.torch_settings import MIB

ALIGNMENT = 256

OPTIONS = {
    "lag_ns": LAG,
    "compact": Option(0, 0, 1, "FLAGS native_compact: copy live blocks down when memory runs out"),
    "small_pool_mb": Option(0, 0, None, "requests up to so many MiB have a heap of their own"),
    "small_growth_mb": Option(0, 0, None, "the least that the small heap grows by"),
    "large_growth_mb": Option(0, 0, None, "the least that the other heap grows by"),
    "granularity_mb": Option(2, 1, None, "what the driver rounds memory up to"),
}

_FIRST_ADDRESS = 1 << 40
_SPACING = 1 << 40  # between the heaps


class Heap:
    """The blocks of one (stream, small or large, pool), which tile what is mapped."""

    __slots__ = ("base", "first", "free", "growth", "last", "mapped")

    def __init__(self, base: int, growth: int) -> None:
        self.base, self.growth, self.mapped = base, growth, 0
        self.first: Span | None = None
        self.last: Span | None = None
        self.free = FreeSpans()


class PaddleVmm(StreamSafe[Span]):
    """The allocators of one device, one for each (stream, pool).

    `capacity` in bytes limits what is mapped, None for no limit. Options: those of `OPTIONS`.
    Raises `vmm.errors.Invalid`.
    """

    name = "paddle_vmm"

    def __init__(self, capacity: int | None = None, **options: object) -> None:
        values = read_options(self.name, OPTIONS, options)
        super().__init__(capacity, values["lag_ns"])
        self._compacts = bool(values["compact"])
        self._small_limit = values["small_pool_mb"] * MIB
        self._growth = (values["large_growth_mb"] * MIB, values["small_growth_mb"] * MIB)
        self._granule = values["granularity_mb"] * MIB
        self._heaps: dict[tuple[int, bool, int], Heap] = {}

    # ---- Blocks ----

    def _place(self, size: int, stream: int, pool: int) -> Span:
        rounded = -(-size // ALIGNMENT) * ALIGNMENT if size else ALIGNMENT
        small = rounded <= self._small_limit
        heap = self._heaps.get((stream, small, pool))
        if heap is None:
            base = _FIRST_ADDRESS + len(self._heaps) * _SPACING
            heap = self._heaps[stream, small, pool] = Heap(base, self._growth[small])
        block = heap.free.take(rounded) or self._grow(heap, rounded, stream)
        if block is None:
            block = self._retry(heap, rounded, stream)
            if block is None:
                raise OutOfMemory(
                    f"{size} bytes do not fit: {self.reserved} of {self.capacity} bytes are mapped"
                    f" and {self.live} are live"
                )
        rest = block.size - rounded
        if rest > ALIGNMENT or block.size > 2 * rounded:
            tail = block.cut(rounded)
            if heap.last is block:
                heap.last = tail
            heap.free.add(tail)
        block.state, block.rounded = LIVE, rounded
        return block

    def _release(self, block: Span) -> None:
        heap: Heap = block.home
        merged = heap.free.merge(block)
        if merged.next is None:
            heap.last = merged

    def blocks(self) -> list[Span]:
        """All blocks in the order of their addresses."""
        spans = []
        for heap in self._heaps.values():
            span = heap.first
            while span is not None:
                spans.append(span)
                span = span.next
        return spans

    # ---- Growth ----

    def _grow(self, heap: Heap, rounded: int, stream: int) -> Span | None:
        """The free tail with the pages it lacks, in no list; None if the driver has no more."""
        last = heap.last
        tail = last if last is not None and last.state == FREE else None
        lack = rounded - tail.size if tail is not None else rounded
        size = -(-max(lack, heap.growth) // self._granule) * self._granule
        if not self._fits(size):
            return None
        self.counters["device_alloc"] += 1
        self.counters["maps"] += 1
        self.reserved += size
        if tail is not None:
            heap.free.remove(tail)
            tail.size += size
        else:
            tail = Span(heap.base + heap.mapped, size, FREE, stream, heap)
            if last is None:
                heap.first = tail
            else:
                last.next, tail.previous = tail, last
            heap.last = tail
        heap.mapped += size
        return tail

    def _retry(self, heap: Heap, rounded: int, stream: int) -> Span | None:
        """Compacts if that is allowed, then looks once more at what other streams held back."""
        for _ in range(2):
            self.counters["retries"] += 1
            if self._compacts:
                self._compact(heap, stream)
            block = heap.free.take(rounded) or self._grow(heap, rounded, stream)
            if block is not None:
                return block
            self._finish()
        return None

    def _compact(self, heap: Heap, stream: int) -> None:
        """Copies every block down over the holes before it; what is free is then one tail."""
        self._sync_device()
        cursor, previous = heap.base, None
        span = heap.first
        free = FreeSpans()
        heap.first = None
        while span is not None:
            following = span.next
            if span.state == LIVE:
                if span.address != cursor:
                    self.counters["bytes_moved"] += span.size
                    span.address = cursor
                span.previous = previous
                if previous is None:
                    heap.first = span
                else:
                    previous.next = span
                previous, cursor = span, cursor + span.size
            span = following
        heap.last = previous
        if previous is not None:
            previous.next = None
        heap.free = free
        rest = heap.base + heap.mapped - cursor
        if rest:
            tail = Span(cursor, rest, FREE, stream, heap)
            tail.previous, heap.last = previous, tail
            if previous is None:
                heap.first = tail
            else:
                previous.next = tail
            free.add(tail)
        self.counters["syncs"] += 1
