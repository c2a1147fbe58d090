# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch's caching allocator in its default mode, address by address.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.13 without expandable segments: best fit
ordered by (stream, size, address), segments of 2 MiB, 20 MiB or the request's own size, frees
merged inside a segment. `vmm.sim.exact` holds it against recordings of the real one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from vmm.sim.models.base import OutOfMemory

from vmm.errors import Invalid
from vmm.sim.models.torch_settings import (
    MIN_BLOCK,
    SEGMENT_GRANULE,
    SMALL_LIMIT,
    TorchSettings,
)

FREE, LIVE, PENDING = 0, 1, 2

_ADDRESS_BITS = 64
_ADDRESS_MASK = (1 << _ADDRESS_BITS) - 1
_FIRST_ADDRESS = 1 << 40

# Gives the address of a new segment of (size, stream, pool).
SegmentAddress = Callable[[int, int, int], int]


class Block:
    """A part of a segment; `previous` and `next` are its neighbors there."""

    __slots__ = (
        "address",
        "born",
        "events",
        "next",
        "pool",
        "previous",
        "requested",
        "rounded",
        "size",
        "state",
        "stream",
        "uses",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool) -> None:
        self.address, self.size, self.stream, self.pool = address, size, stream, pool
        self.previous: Block | None = None
        self.next: Block | None = None
        self.state = FREE
        self.requested = self.rounded = 0
        self.uses: set[int] | None = None  # other streams that were recorded
        self.events = 0  # recorded streams that are not done yet
        self.born = 0  # searches of the pool when this became free


class Pool:
    """The free blocks of one kind: for each stream ascending keys (size, address)."""

    __slots__ = ("lists", "number", "searches", "small")

    def __init__(self, number: int, small: bool) -> None:
        self.number, self.small = number, small
        self.lists: dict[int, list[int]] = {}
        self.searches = 0


class TorchDefault:
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
        self.capacity = capacity
        self.settings = settings or TorchSettings()
        self.reserved = 0
        self.live = 0  # rounded sizes, without what a block has beyond them
        self.counters: dict[str, int] = dict.fromkeys(
            ("device_alloc", "device_free", "syncs", "retries", "steals", "waits", "driver_ns"), 0
        )
        self.segments: dict[int, Block] = {}  # address -> first block
        self._segment_address = segment_address or self._next_address
        self._bump = _FIRST_ADDRESS
        self._pools = {0: (Pool(0, True), Pool(0, False))}
        self._unused: set[int] = set()  # private pools that were released
        self._ids: dict[int, Block] = {}
        self._free: dict[int, Block] = {}  # free blocks by address
        self._rounded: dict[int, int] = {}
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
        pass

    def advance(self, t_ns: int) -> None:
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

    def place(self, block: Block, rounded: int, size: int) -> None:
        """Gives a block that is in no free list to a request, and splits off what can be."""
        rest = block.size - rounded
        if rest >= MIN_BLOCK and (
            block.pool.small or (rest > SMALL_LIMIT and rounded < self.settings.max_split_size)
        ):
            self.cut(block, rounded)
        block.state, block.requested, block.rounded = LIVE, size, rounded
        self.live += rounded

    def request_free(self, block: Block) -> None:
        """The owner gave the block back, but work on it may be queued: nobody can have it yet."""
        block.state = PENDING
        self.live -= block.rounded

    def complete_free(self, block: Block) -> None:
        """Merges the block with its free neighbors and makes what results available."""
        if block.state == LIVE:
            self.request_free(block)
        before, after = block.previous, block.next
        if before is not None and before.state == FREE:
            self.remove(before)
            before.size += block.size
            before.next = after
            if after is not None:
                after.previous = before
            block = before
        if after is not None and after.state == FREE:
            self.remove(after)
            block.size += after.size
            block.next = after.next
            if after.next is not None:
                after.next.previous = block
        self.insert(block)

    def find(self, rounded: int, stream: int, pool: int) -> Block | None:
        """The free block that a request of this rounded size would get; changes nothing."""
        at, blocks = self._find(self.pool_of(rounded, pool), rounded, stream)
        return self._free[blocks[at] & _ADDRESS_MASK] if at >= 0 else None

    def insert(self, block: Block) -> None:
        """Makes a block available, as it is."""
        block.state = FREE
        block.requested = block.rounded = 0
        block.born = block.pool.searches
        self._free[block.address] = block
        key = block.size << _ADDRESS_BITS | block.address
        insort(block.pool.lists.setdefault(block.stream, []), key)

    def remove(self, block: Block) -> None:
        """Takes a free block out of the free ones."""
        keys = block.pool.lists[block.stream]
        del keys[bisect_left(keys, block.size << _ADDRESS_BITS | block.address)]
        del self._free[block.address]

    def cut(self, block: Block, size: int) -> None:
        """Keeps the low `size` bytes in the block; the rest becomes a free one behind it."""
        rest = Block(block.address + size, block.size - size, block.stream, block.pool)
        rest.previous, rest.next = block, block.next
        if block.next is not None:
            block.next.previous = rest
        block.next, block.size = rest, size
        self.insert(rest)

    def pool_of(self, rounded: int, number: int) -> Pool:
        """The free blocks in which a request is searched."""
        if number in self._unused:
            self._unused.discard(number)
        pair = self._pools.get(number)
        if pair is None:
            pair = self._pools[number] = (Pool(number, True), Pool(number, False))
        return pair[0 if rounded <= SMALL_LIMIT else 1]

    def blocks(self) -> Iterator[Block]:
        """All blocks in the order of their addresses."""
        for address in sorted(self.segments):
            block: Block | None = self.segments[address]
            while block is not None:
                yield block
                block = block.next

    # ---- Segments ----

    def add_segment(self, address: int, size: int, stream: int, pool: Pool) -> Block:
        """A new segment as one block that is in no free list."""
        block = Block(address, size, stream, pool)
        self.segments[address] = block
        self.reserved += size
        return block

    def adopt(self, first: Block, parts: list[tuple[int, int, int]]) -> list[Block]:
        """Divides a new segment into parts (size, state, requested bytes) that tile it."""
        blocks = [first]
        for size, _, _ in parts[:-1]:
            last = blocks[-1]
            rest = Block(last.address + size, last.size - size, first.stream, first.pool)
            last.size, last.next, rest.previous = size, rest, last
            blocks.append(rest)
        for block, (_, state, requested) in zip(blocks, parts, strict=True):
            if state == FREE:
                self.insert(block)
                continue
            block.requested, block.rounded = requested, self.settings.round(requested)
            block.state = state
            self.live += block.rounded if state == LIVE else 0
        return blocks

    def release_segment(self, block: Block) -> None:
        """Gives a free block that is a whole segment back to the driver."""
        self.remove(block)
        del self.segments[block.address]
        self.reserved -= block.size
        self.counters["device_free"] += 1

    def cached_segments(self) -> list[Block]:
        """What emptying the cache gives back, in torch's order."""
        return [block for pool in self._releasable() for block in self._whole(pool)]

    def empty_cache(self) -> None:
        """Waits for all events, then gives every segment back that is wholly free."""
        self.counters["syncs"] += 1
        for queue in self._queues.values():
            self._drain(queue, None)
        self._queues.clear()
        for block in self.cached_segments():
            self.release_segment(block)

    def release_pool(self, pool: int) -> None:
        """Nobody allocates from a private pool any more: its cache can be given back."""
        if pool:
            self._unused.add(pool)

    # ---- Inside ----

    def _next_address(self, size: int, stream: int, pool: int) -> int:
        address = self._bump
        self._bump += -(-size // SEGMENT_GRANULE) * SEGMENT_GRANULE
        return address

    def _find(self, pool: Pool, rounded: int, stream: int) -> tuple[int, list[int]]:
        keys = pool.lists.get(stream)
        if not keys:
            return -1, []
        at = bisect_left(keys, rounded << _ADDRESS_BITS)
        if at == len(keys):
            return -1, keys
        limit = self.settings.max_split_size
        size = keys[at] >> _ADDRESS_BITS
        # An oversize block is for oversize requests, and only for those that nearly fill it.
        if rounded < limit:
            return (at if size < limit else -1), keys
        return (at if size < rounded + self.settings.max_non_split_rounding else -1), keys

    def _take(self, pool: Pool, rounded: int, stream: int) -> Block | None:
        pool.searches += 1
        at, keys = self._find(pool, rounded, stream)
        return self._free.pop(keys.pop(at) & _ADDRESS_MASK) if at >= 0 else None

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
        at = bisect_left(keys, need << _ADDRESS_BITS)
        if at < len(keys):
            self.release_segment(self._free[keys[at] & _ADDRESS_MASK])
            return True
        released = 0
        while keys and released < need and keys[-1] >> _ADDRESS_BITS >= limit:
            block = self._free[keys[-1] & _ADDRESS_MASK]
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

    def _whole(self, pool: Pool) -> list[Block]:
        """Its free blocks that are a whole segment, by stream, size and address."""
        blocks = (
            self._free[key & _ADDRESS_MASK] for s in sorted(pool.lists) for key in pool.lists[s]
        )
        return [block for block in blocks if block.previous is None and block.next is None]

    def _releasable(self) -> Iterator[Pool]:
        yield from reversed(self._pools[0])
        for number in sorted(self._unused & self._pools.keys()):
            yield from self._pools[number]

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
