# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""GMLake: a caching allocator that stitches free blocks by mapping them side by side once more.

Follows "GMLake: Efficient and Transparent GPU Memory Defragmentation for Large-scale DNN Training
with Virtual Memory Stitching" (ASPLOS 2024) and the allocator its authors published
(intelligent-machine-learning/glake), for torch 2.0. Requests up to 1 MiB take torch's own path.
A larger one is served by the first of

    S1  a primitive block, else a stitched block, of exactly its size
    S2  a larger primitive block, which is split; else a larger stitched block, of which the front
        is used; at most `reuse_limit` times the request
    S3  several primitive blocks, the largest first, which are stitched
    S4  what the driver gives: only what the free blocks lack, stitched to them

where S3 and the stitching of S4 are for requests of at least `frag_limit` bytes.
"""

from __future__ import annotations

from bisect import bisect_left

from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.best_fit import ADDRESS_BITS, ADDRESS_MASK, FreeSpans, Span
from vmm.sim.models.options import LAG, Option, read_options
from vmm.sim.models.primitives import Primitives
from vmm.sim.models.stitched import Stitched, StitchedPool
from vmm.sim.models.streams import StreamSafe
from vmm.sim.models.torch_blocks import Block, Pool, TorchBlocks
from vmm.sim.models.torch_settings import MIB, MIN_BLOCK, SMALL_LIMIT, SMALL_SEGMENT

CHUNK = 2 * MIB

OPTIONS = {
    "lag_ns": LAG,
    "frag_limit": Option(
        # The published source; its tutorial sets 512 MiB, with which far less is stitched.
        32 * MIB,
        CHUNK,
        None,
        "fragLimit: the least request, in bytes, to stitch",
    ),
    "reuse_limit": Option(10, 1, None, "reuseLimit: the most that a reused one may be larger"),
    "defrag_level": Option(
        0, 0, 1, "defragLevel 0: stitch at once; 1: when the driver has no more"
    ),
    "auto_gc": Option(1000, 0, None, "autoGC: GiB of stitched addresses that are kept"),
    "merge": Option(1, 0, 1, "free parts of a segment join again, as in the published allocator"),
    "whole_growth": Option(0, 0, 1, "S4 asks for the whole request, as the published one does"),
}

_FIRST_ADDRESS = 1 << 40


class SmallBlocks(TorchBlocks):
    """torch's blocks of which all segments have one size."""

    def _whole(self, pool: Pool) -> list[Block]:
        least = SMALL_SEGMENT << ADDRESS_BITS
        keys = [
            key
            for _, keys in sorted(pool.lists.items())
            for key in keys[bisect_left(keys, least) :]
        ]
        return [self._free[key & ADDRESS_MASK] for key in keys]


class Grant:
    """A large request: the primitive spans that hold it, and the stitched block it is seen by."""

    __slots__ = ("address", "rounded", "spans", "stitched", "stream")

    def __init__(
        self, address: int, rounded: int, stream: int, spans: list[Span], stitched: Stitched | None
    ) -> None:
        self.address, self.rounded, self.stream = address, rounded, stream
        self.spans, self.stitched = spans, stitched


class Gmlake(StreamSafe["Grant | Block"]):
    """The allocator of one device.

    `capacity` in bytes limits the chunks and small segments, None for no limit. Options: those of
    `OPTIONS`. Pool 0 is the common one; any other number is a private pool, whose memory stays
    until `release_pool`. Raises `vmm.errors.Invalid`.
    """

    name = "gmlake"

    def __init__(self, capacity: int | None = None, **options: object) -> None:
        values = read_options(self.name, OPTIONS, options)
        super().__init__(capacity, values["lag_ns"])
        self._frag_limit = values["frag_limit"]
        self._reuse_limit = values["reuse_limit"]
        self._lazy = bool(values["defrag_level"])
        self._whole_growth = bool(values["whole_growth"])
        self._small = SmallBlocks()
        self._primitives = Primitives(bool(values["merge"]))
        self._stitched = StitchedPool(self._primitives, values["auto_gc"] << 30, self._unmap)
        self._homes: dict[tuple[int, int], FreeSpans] = {}
        self._private: dict[int, int] = {}  # segment of a private pool -> pool
        self._unused: set[int] = set()  # private pools nobody allocates from any more
        self._bump = _FIRST_ADDRESS

    @property
    def stitched(self) -> tuple[int, int]:
        """How many stitched blocks are kept, and the bytes of addresses they take."""
        return len(self._stitched), self._stitched.total

    def release_pool(self, pool: int) -> None:
        """Nobody allocates from a private pool any more: its memory can be given back."""
        self._small.release_pool(pool)
        if pool:
            self._unused.add(pool)

    def ranges_of(self, id: int) -> list[tuple[int, int]]:
        """The memory of an allocation, (home address, bytes) each, in order."""
        block = self._held[id]
        if isinstance(block, Block):
            return [(block.address, block.size)]
        return [(span.address, span.size) for span in block.spans]

    # ---- Blocks ----

    def _place(self, size: int, stream: int, pool: int) -> Grant | Block:
        rounded = -(-size // MIN_BLOCK) * MIN_BLOCK if size else MIN_BLOCK
        if rounded <= SMALL_LIMIT:
            return self._place_small(size, rounded, stream, pool)
        rounded = -(-rounded // CHUNK) * CHUNK
        home = self._homes.get((stream, pool))
        if home is None:
            home = self._homes[stream, pool] = FreeSpans()
        if self._unused:
            self._unused.discard(pool)
        grant = self._find(home, rounded, stream)
        if grant is None and not self._lazy:
            grant = self._stitch(home, rounded, stream)
        return grant or self._grow(home, rounded, stream, pool)

    def _release(self, block: Grant | Block) -> None:
        if isinstance(block, Block):
            self._small.complete_free(block)
            return
        for span in block.spans:
            self._primitives.release(span)
        if block.stitched is not None:
            self._stitched.release(block.stitched, self.clock.done(block.stream))

    # ---- The states of a search ----

    def _find(self, home: FreeSpans, rounded: int, stream: int) -> Grant | None:
        """S1 and S2."""
        for exact in (True, False):
            most = rounded if exact else rounded * self._reuse_limit
            span = self._primitives.take(home, rounded, exact)
            if span is not None:
                return Grant(span.address, rounded, stream, [span], None)
            old = self._stitched.take(home, rounded, most)
            if old is not None:
                spans = self._primitives.use_ranges(old.ranges, rounded)
                return Grant(old.address, rounded, stream, spans, old)
        return None

    def _stitch(self, home: FreeSpans, rounded: int, stream: int) -> Grant | None:
        """S3: the largest free blocks at new addresses; the last of them is split."""
        if rounded < self._frag_limit or _bytes(home) < rounded:
            return None
        ranges: list[tuple[int, int]] = []
        lack = rounded
        for span in reversed(list(home)):
            ranges.append((span.address, min(span.size, lack)))
            lack -= ranges[-1][1]
            if lack == 0:
                break
        spans = self._primitives.use_ranges(ranges, rounded)
        block = Stitched(self._next_address(rounded), ranges, home)
        self.counters["maps"] += rounded // CHUNK
        self._stitched.add(block, self.clock.now)
        return Grant(block.address, rounded, stream, spans, block)

    def _grow(self, home: FreeSpans, rounded: int, stream: int, pool: int) -> Grant:
        """S4, and what is left to do when the driver has no more."""
        for pressure in (False, True):
            if pressure:
                self._release_cached()
                self.counters["retries"] += 1
            stitches = not self._lazy and not self._whole_growth
            grant = (
                (stitches and self._grow_by_lack(home, rounded, stream, pool))
                or self._grow_whole(home, rounded, stream, pool)
                or self._stitch(home, rounded, stream)
                or (not self._whole_growth and self._grow_by_lack(home, rounded, stream, pool))
            )
            if grant:
                return grant
        raise OutOfMemory(
            f"{rounded} bytes do not fit: {self.reserved} of {self.capacity} bytes are reserved"
            f" and {self.live} are live"
        )

    def _grow_whole(self, home: FreeSpans, rounded: int, stream: int, pool: int) -> Grant | None:
        span = self._segment(rounded, home, stream, pool)
        if span is None:
            return None
        return Grant(span.address, rounded, stream, [self._primitives.use(span, rounded)], None)

    def _grow_by_lack(self, home: FreeSpans, rounded: int, stream: int, pool: int) -> Grant | None:
        there = _bytes(home)
        if rounded < self._frag_limit or not 0 < there < rounded:
            return None
        span = self._segment(rounded - there, home, stream, pool)
        if span is None:
            return None
        self._primitives.release(span)
        return self._stitch(home, rounded, stream)

    # ---- The driver ----

    def _segment(self, need: int, home: FreeSpans, stream: int, pool: int) -> Span | None:
        size = self._small.settings.segment_size(need)
        if not self._fits(size):
            return None
        self.reserved += size
        self.counters["device_alloc"] += size // CHUNK
        self.counters["maps"] += size // CHUNK
        span = self._primitives.add_segment(self._next_address(size), size, stream, home)
        if pool:
            self._private[span.address] = pool
        return span

    def _place_small(self, size: int, rounded: int, stream: int, pool: int) -> Block:
        blocks = self._small.pool_of(rounded, pool)
        block = self._small.find(rounded, stream, pool)
        if block is not None:
            self._small.remove(block)
        else:
            block = self._small_segment(blocks, stream, size)
        self._small.place(block, rounded, size)
        return block

    def _small_segment(self, blocks: Pool, stream: int, size: int) -> Block:
        if not self._fits(SMALL_SEGMENT):
            self._release_cached()
            self.counters["retries"] += 1
            if not self._fits(SMALL_SEGMENT):
                raise OutOfMemory(
                    f"{size} bytes need a segment of {SMALL_SEGMENT}, but {self.reserved} of"
                    f" {self.capacity} are reserved"
                )
        self.counters["device_alloc"] += 1
        self.reserved += SMALL_SEGMENT
        address = self._next_address(SMALL_SEGMENT)
        return self._small.add_segment(address, SMALL_SEGMENT, stream, blocks)

    def _release_cached(self) -> None:
        """Waits for all events, then gives every segment back of which nothing is in use."""
        self._wait_deferred()
        self._sync_device()
        for address in self._primitives.idle_segments():
            pool = self._private.get(address, 0)
            if pool and pool not in self._unused:
                continue
            size = self._primitives.remove_segment(address)
            self._stitched.forget(address, size)
            self._private.pop(address, None)
            self._unmap(size)
            self.reserved -= size
            self.counters["device_free"] += size // CHUNK
        for block in self._small.cached_segments():
            self.reserved -= block.size
            self.counters["device_free"] += 1
            self._small.release_segment(block)

    def _unmap(self, size: int) -> None:
        self.counters["unmaps"] += size // CHUNK

    def _next_address(self, size: int) -> int:
        address = self._bump
        self._bump += size
        return address


def _bytes(home: FreeSpans) -> int:
    return sum(key >> ADDRESS_BITS for key in home.keys)
