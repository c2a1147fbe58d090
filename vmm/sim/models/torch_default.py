# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch's caching allocator in its default mode, address by address.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.13 without expandable segments: best fit
ordered by (stream, size, address), segments of 2 MiB, 20 MiB or the request's own size, frees
merged inside a segment. `vmm.sim.exact` holds it against recordings of the real one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.torch_blocks import ADDRESS_BITS, ADDRESS_MASK, Block, Pool, TorchBlocks
from vmm.sim.models.torch_settings import SEGMENT_GRANULE, TorchSettings

_FIRST_ADDRESS = 1 << 40

# Gives the address of a new segment of (size, stream, pool).
SegmentAddress = Callable[[int, int, int], int]


class TorchDefault(TorchBlocks):
    """The allocator of one device.

    `capacity` in bytes limits the sum of the segments, None for no limit. `settings` are those of
    PYTORCH_CUDA_ALLOC_CONF; its keys are also taken one by one: ``max_split_size_mb=200``.
    `segment_address` gives new segments their place; without it they follow one another.
    Pool 0 is the common one; any other number is a private pool, in use until `release_pool`.
    Raises `vmm.errors.Invalid`.
    """

    name = "torch_default"

    def __init__(
        self,
        capacity: int | None = None,
        *,
        settings: TorchSettings | None = None,
        segment_address: SegmentAddress | None = None,
        **options: object,
    ) -> None:
        if options:
            given = TorchSettings.from_text(",".join(f"{k}:{v}" for k, v in options.items()))
            changed = {
                name: value
                for name, value in vars(given).items()
                if value != getattr(TorchSettings(), name)
            }
            settings = replace(settings or TorchSettings(), **changed)
        super().__init__(settings)
        self.capacity = capacity
        self._segment_address = segment_address or self._next_address
        self._bump = _FIRST_ADDRESS
        self._ids: dict[int, Block] = {}
        self._rounded: dict[int, int] = {}  # request -> size of its block
        self._now = 0
        self._busy: dict[int, int] = {}  # stream -> when its queued work ends
        self._queues: dict[int, deque[tuple[int, Block]]] = {}

    # ---- What a replay calls ----

    def alloc(self, id: int, size: int, stream: int = 0, pool: int = 0) -> int:
        """Places a request and returns its address. Raises OutOfMemory, `Invalid` for a used id."""
        if id in self._ids:
            raise Invalid(f"id {id} is allocated already")
        if self._queues:
            self._process_events()
        block = self.malloc(size, stream, pool)
        self._ids[id] = block
        return block.address

    def free(self, id: int) -> None:
        """Frees; the block can be used again once every recorded stream got past this point."""
        block = self._ids.pop(id, None)
        if block is None:
            raise Invalid(f"id {id} is not allocated")
        self.request_free(block)
        if not block.uses:
            self.complete_free(block)
            return
        for stream in sorted(block.uses):
            done = max(self._now, self._busy.get(stream, 0))
            self._queues.setdefault(stream, deque()).append((done, block))
        block.events, block.uses = len(block.uses), None

    def record_stream(self, id: int, stream: int) -> None:
        """Another stream uses the allocation, too."""
        block = self._ids.get(id)
        if block is None:
            raise Invalid(f"id {id} is not allocated")
        if stream != block.stream:
            block.uses = (block.uses or set()) | {stream}

    def kernel(self, stream: int, ns: int) -> None:
        """Work of `ns` behind what the stream has queued."""
        self._busy[stream] = max(self._now, self._busy.get(stream, 0)) + ns

    def sync(self, stream: int) -> None:
        """The host has waited for the stream."""
        self._busy[stream] = min(self._busy.get(stream, 0), self._now)
        queue = self._queues.get(stream)
        if queue:
            self._queues[stream] = deque((min(done, self._now), block) for done, block in queue)

    def step(self) -> None:
        """A step of training ended; that changes nothing here."""

    def advance(self, t_ns: int) -> None:
        """Moves the clock to `t_ns`, or leaves it where it is beyond that."""
        self._now = max(self._now, t_ns)

    # ---- Blocks ----

    def malloc(self, size: int, stream: int, pool: int) -> Block:
        """The block for a request, marked live."""
        rounded = self._rounded.get(size)
        if rounded is None:
            rounded = self._rounded[size] = self.settings.round(size)
        blocks = self.pool_of(rounded, pool)
        block = self._take(blocks, rounded, stream) or self._grow(blocks, rounded, stream, size)
        self.place(block, rounded, size)
        return block

    def empty_cache(self) -> None:
        """Waits for all events, then gives every segment back that is wholly free."""
        self.counters["syncs"] += 1
        for queue in self._queues.values():
            self._drain(queue, None)
        self._queues.clear()
        for block in self.cached_segments():
            self.release_segment(block)

    # ---- Inside ----

    def _next_address(self, size: int, stream: int, pool: int) -> int:
        address = self._bump
        self._bump += -(-size // SEGMENT_GRANULE) * SEGMENT_GRANULE
        return address

    def _take(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        pool.searches += 1
        at, keys = self._find(pool, rounded, stream)
        return self._free.pop(keys.pop(at) & ADDRESS_MASK) if at >= 0 else None

    def _grow(self, pool: Pool, rounded: int, stream: int, size: int) -> Block:
        self._collect_garbage()
        need = self.settings.segment_size(rounded)
        if not self._fits(need) and not (
            self._release_oversize(pool, rounded, stream) and self._fits(need)
        ):
            self.empty_cache()
            self.counters["retries"] += 1
            if not self._fits(need):
                raise OutOfMemory(
                    f"{size} bytes need a segment of {need}, but {self.reserved} of"
                    f" {self.capacity} are reserved"
                )
        self.counters["device_alloc"] += 1
        return self.add_segment(
            self._segment_address(need, stream, pool.number), need, stream, pool
        )

    def _fits(self, need: int) -> bool:
        return self.capacity is None or self.reserved + need <= self.capacity

    def _release_oversize(self, pool: Pool, rounded: int, stream: int) -> bool:
        """With a split limit: gives back the cached blocks beyond it until the request fits in."""
        limit = self.settings.max_split_size
        if limit >= 1 << 62:
            return False
        need = max(rounded, limit)
        keys = pool.lists.get(stream, [])
        at = bisect_left(keys, need << ADDRESS_BITS)
        if at < len(keys):
            self.release_segment(self._free[keys[at] & ADDRESS_MASK])
            return True
        released = 0
        while keys and released < need and keys[-1] >> ADDRESS_BITS >= limit:
            block = self._free[keys[-1] & ADDRESS_MASK]
            released += block.size
            self.release_segment(block)
        return released >= need

    def _collect_garbage(self) -> None:
        """Above the threshold: gives back large segments that were not used for long."""
        threshold = self.settings.garbage_collection_threshold
        if threshold <= 0 or self.capacity is None:
            return
        excess = self.reserved - int(threshold * self.capacity)
        pool = self._pools[0][1]
        blocks = self._whole(pool)
        freed = excess > 0
        while excess > 0 and freed and blocks:
            average = sum(pool.searches - block.born for block in blocks) / len(blocks)
            old = [block for block in blocks if pool.searches - block.born >= average]
            blocks = [block for block in blocks if pool.searches - block.born < average]
            excess -= sum(block.size for block in old)
            freed = bool(old)
            for block in old:
                self.release_segment(block)

    def _process_events(self) -> None:
        for stream in sorted(self._queues):
            queue = self._queues[stream]
            self._drain(queue, self._now)
            if not queue:
                del self._queues[stream]

    def _drain(self, queue: deque[tuple[int, Block]], until: int | None) -> None:
        while queue and (until is None or queue[0][0] <= until):
            block = queue.popleft()[1]
            block.events -= 1
            if block.events == 0:
                self.complete_free(block)
