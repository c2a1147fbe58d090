# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Stitched blocks: addresses that show several ranges of primitive memory as one."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

from vmm.sim.models.best_fit import ADDRESS_BITS, ADDRESS_MASK, FreeSpans, Span
from vmm.sim.models.primitives import Primitives, Range


class Stitched:
    """`size` bytes at `address` that are the ranges, in order."""

    __slots__ = (
        "active",
        "address",
        "home",
        "idle_from",
        "lost",
        "ranges",
        "size",
        "witness",
        "witnessed",
    )

    def __init__(self, address: int, ranges: list[Range], home: FreeSpans) -> None:
        self.address, self.ranges, self.home = address, ranges, home
        self.size = sum(size for _, size in ranges)
        self.active = True
        self.idle_from = 0  # when the last work on it is seen to be done
        self.lost = False  # a part that is not in use went back to the driver
        self.witness: Span | None = None  # was found in use, for its use of this number
        self.witnessed = 0


class StitchedPool:
    """The stitched blocks of one device, kept for reuse.

    `limit` bounds the addresses that they take together: the least recently used go first. `unmap`
    is told the bytes of each that goes.
    """

    def __init__(self, primitives: Primitives, limit: int, unmap: Callable[[int], None]) -> None:
        self.total = 0
        self._primitives, self._limit, self._unmap = primitives, limit, unmap
        # Idle ones, least recently used first. Whether their memory is free is seen at use.
        self._idle: dict[int, Stitched] = {}
        self._active: dict[int, Stitched] = {}
        self._keys: dict[int, list[int]] = {}  # id of home -> ascending (size, address)

    def __len__(self) -> int:
        return len(self._idle) + len(self._active)

    def add(self, block: Stitched, now: int) -> None:
        """Keeps a new block, which is in use."""
        self._active[block.address] = block
        self.total += block.size
        for old in list(self._idle.values()):
            # What is not done yet is followed by what is done still later.
            if self.total <= self._limit or old.idle_from > now:
                break
            self._drop(old)

    def take(self, home: FreeSpans, least: int, most: int) -> Stitched | None:
        """The smallest block of `least` to `most` bytes of which nothing is in use."""
        keys = self._keys.get(id(home))
        if not keys:
            return None
        for at in range(bisect_left(keys, least << ADDRESS_BITS), len(keys)):
            if keys[at] >> ADDRESS_BITS > most:
                return None
            block = self._idle[keys[at] & ADDRESS_MASK]
            witness = block.witness
            if witness is not None and witness.use == block.witnessed:
                continue
            witness = block.witness = self._primitives.first_in_use(block.ranges)
            if witness is None:
                del keys[at], self._idle[block.address]
                block.active = True
                self._active[block.address] = block
                return block
            block.witnessed = witness.use
        return None

    def release(self, block: Stitched, idle_from: int) -> None:
        """The block is in use no more."""
        del self._active[block.address]
        block.active, block.idle_from = False, idle_from
        self._idle[block.address] = block
        keys = self._keys.setdefault(id(block.home), [])
        insort(keys, block.size << ADDRESS_BITS | block.address)
        if block.lost:
            self._drop(block)

    def forget(self, address: int, size: int) -> None:
        """A primitive segment goes back to the driver, and with it all that shows a part of it."""
        for block in [*self._idle.values(), *self._active.values()]:
            if any(address <= start < address + size for start, _ in block.ranges):
                if block.active:
                    block.lost = True
                else:
                    self._drop(block)

    def _drop(self, block: Stitched) -> None:
        del self._idle[block.address]
        keys = self._keys[id(block.home)]
        del keys[bisect_left(keys, block.size << ADDRESS_BITS | block.address)]
        self.total -= block.size
        self._unmap(block.size)
