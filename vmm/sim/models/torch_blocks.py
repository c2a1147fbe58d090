# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The blocks and segments of torch's caching allocator: best fit, splitting and merging.

Follows c10/cuda/CUDACachingAllocator.cpp of torch 2.13 without expandable segments. When the driver
is asked, and what streams hold back, is decided in `vmm.sim.models.torch_default`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from vmm.sim.models.torch_settings import MIN_BLOCK, SMALL_LIMIT, TorchSettings

FREE, LIVE, PENDING = 0, 1, 2

ADDRESS_BITS = 64
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1


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


class TorchBlocks:
    """The memory of one device; pool 0 is the common one, any other number a private pool.

    ``reserved`` is the sum of the segments in bytes, ``live`` the sum of the rounded requests (a
    block may be larger). ``segments`` maps the address of each segment to its first block.
    """

    def __init__(self, settings: TorchSettings | None = None) -> None:
        self.settings = settings or TorchSettings()
        self.reserved = 0
        self.live = 0
        self.counters: dict[str, int] = dict.fromkeys(
            ("device_alloc", "device_free", "syncs", "retries", "steals", "waits", "driver_ns"), 0
        )
        self.segments: dict[int, Block] = {}
        self._pools = {0: (Pool(0, True), Pool(0, False))}
        self._unused: set[int] = set()  # private pools that were released
        self._free: dict[int, Block] = {}  # free blocks by address

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
        return self._free[blocks[at] & ADDRESS_MASK] if at >= 0 else None

    def insert(self, block: Block) -> None:
        """Makes a block available, as it is."""
        block.state = FREE
        block.requested = block.rounded = 0
        block.born = block.pool.searches
        self._free[block.address] = block
        key = block.size << ADDRESS_BITS | block.address
        insort(block.pool.lists.setdefault(block.stream, []), key)

    def remove(self, block: Block) -> None:
        """Takes a free block out of the free ones."""
        keys = block.pool.lists[block.stream]
        del keys[bisect_left(keys, block.size << ADDRESS_BITS | block.address)]
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

    def release_pool(self, pool: int) -> None:
        """Nobody allocates from a private pool any more: its cache can be given back."""
        if pool:
            self._unused.add(pool)

    # ---- Inside ----

    def _find(self, pool: Pool, rounded: int, stream: int) -> tuple[int, list[int]]:
        keys = pool.lists.get(stream)
        if not keys:
            return -1, []
        at = bisect_left(keys, rounded << ADDRESS_BITS)
        if at == len(keys):
            return -1, keys
        limit = self.settings.max_split_size
        size = keys[at] >> ADDRESS_BITS
        # An oversize block is for oversize requests, and only for those that nearly fill it.
        if rounded < limit:
            return (at if size < limit else -1), keys
        return (at if size < rounded + self.settings.max_non_split_rounding else -1), keys

    def _whole(self, pool: Pool) -> list[Block]:
        """Its free blocks that are a whole segment, by stream, size and address."""
        blocks = (
            self._free[key & ADDRESS_MASK] for s in sorted(pool.lists) for key in pool.lists[s]
        )
        return [block for block in blocks if block.previous is None and block.next is None]

    def _releasable(self) -> Iterator[Pool]:
        yield from reversed(self._pools[0])
        for number in sorted(self._unused & self._pools.keys()):
            yield from self._pools[number]
