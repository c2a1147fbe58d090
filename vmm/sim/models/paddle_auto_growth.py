# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paddle's ``auto_growth`` strategy on memory of cudaMalloc.

Follows AutoGrowthBestFitAllocator under StreamSafeCUDAAllocator of Paddle 3.3: one allocator for
each stream, best fit over all its chunks, a split request takes the tail, a chunk goes back to the
driver when it is wholly free and the driver has no more memory.
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
    "chunk_size_mb": Option(0, 0, None, "FLAGS_auto_growth_chunk_size_in_mb: the least chunk"),
    "padding": Option(0, 0, None, "bytes added to each request before it is aligned"),
    "free_when_no_cache_hit": Option(0, 0, 1, "give idle chunks back before each new chunk"),
    "free_idle_chunk": Option(0, 0, 1, "give a chunk back as soon as it is wholly free"),
}

_FIRST_ADDRESS = 1 << 40
_SPACING = 512  # what cudaMalloc aligns to


class PaddleAutoGrowth(StreamSafe[Span]):
    """The allocators of one device, one for each (stream, pool).

    `capacity` in bytes limits the chunks, None for no limit. Options: those of `OPTIONS`.
    Raises `vmm.errors.Invalid`.
    """

    name = "paddle_auto_growth"

    def __init__(self, capacity: int | None = None, **options: object) -> None:
        values = read_options(self.name, OPTIONS, options)
        super().__init__(capacity, values["lag_ns"])
        self._least = values["chunk_size_mb"] * MIB
        self._padding = values["padding"]
        self._free_on_miss = bool(values["free_when_no_cache_hit"])
        self._free_at_once = bool(values["free_idle_chunk"])
        self._heaps: dict[tuple[int, int], FreeSpans] = {}
        self._chunks: dict[int, Span] = {}  # address -> first span
        self._bump = _FIRST_ADDRESS

    # ---- Blocks ----

    def _place(self, size: int, stream: int, pool: int) -> Span:
        rounded = -(-(max(size, 1) + self._padding) // ALIGNMENT) * ALIGNMENT
        heap = self._heaps.get((stream, pool))
        if heap is None:
            heap = self._heaps[stream, pool] = FreeSpans()
        block = heap.take(rounded) or self._grow(heap, rounded, stream)
        if block is None:
            block = self._retry(heap, rounded, stream)
            if block is None:
                raise OutOfMemory(
                    f"{size} bytes need a chunk of {max(rounded, self._least)}, but"
                    f" {self.reserved} of {self.capacity} are reserved"
                )
        if block.size > rounded:
            front, block = block, block.cut(block.size - rounded)
            heap.add(front)
        block.state, block.rounded = LIVE, rounded
        return block

    def _release(self, block: Span) -> None:
        merged = block.home.merge(block)
        if self._free_at_once and merged.previous is None and merged.next is None:
            self._sync_device()
            self._release_chunk(merged)

    def blocks(self) -> list[Span]:
        """All blocks in the order of their addresses."""
        spans = []
        for address in sorted(self._chunks):
            span: Span | None = self._chunks[address]
            while span is not None:
                spans.append(span)
                span = span.next
        return spans

    # ---- Chunks ----

    def _grow(self, heap: FreeSpans, rounded: int, stream: int) -> Span | None:
        if self._free_on_miss:
            self._release_idle(heap)
        need = max(rounded, self._least)
        if not self._fits(need):
            # The chunks of this stream come first; cudaFree waits for the device.
            self.counters["retries"] += 1
            self._release_idle(heap)
            if not self._fits(need):
                return None
        self.counters["device_alloc"] += 1
        self.reserved += need
        chunk = Span(self._bump, need, FREE, stream, heap)
        self._chunks[chunk.address] = chunk
        self._bump += -(-need // _SPACING) * _SPACING
        return chunk

    def _retry(self, heap: FreeSpans, rounded: int, stream: int) -> Span | None:
        """The idle chunks of all streams are given back, then the request is tried once more."""
        self._finish()
        for other in self._heaps.values():
            self._release_idle(other)
        return heap.take(rounded) or self._grow(heap, rounded, stream)

    def _release_idle(self, heap: FreeSpans) -> None:
        idle = [span for span in heap if span.previous is None and span.next is None]
        if idle:
            self._sync_device()
        for span in idle:
            self._release_chunk(span)

    def _release_chunk(self, span: Span) -> None:
        span.home.remove(span)
        del self._chunks[span.address]
        self.reserved -= span.size
        self.counters["device_free"] += 1
