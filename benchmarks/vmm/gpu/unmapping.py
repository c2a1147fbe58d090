# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G4: pages leave an address only after the work that uses it, while streams are busy.

First by hand, then through the allocator: half of the blocks are freed with work still queued on
them, and a block that needs their pages is asked for, by the same stream and by another. The
numbers of all must survive.
"""

from __future__ import annotations

import ctypes
from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError
from benchmarks.vmm.gpu.work import CudaWork, Work, open_both

MIB = 1 << 20
BUSY_NS = 3_000_000
BLOCKS = 16
BLOCK = 8 * MIB
ROUNDS = 12


class AllocatorWork:
    """Stands in for a GPU on the host driver: touches memory at once, only the clock is behind."""

    driver = "driver=host"

    def __init__(self, allocator: Any) -> None:
        self.streams = [1, 2]
        self._allocator = allocator
        self._wrong = 0

    def write(self, stream: int, at: int, size: int, stamp: int) -> None:
        for word in (at, at + size - 8):
            ctypes.c_uint64.from_address(word).value = stamp

    def expect(self, stream: int, at: int, size: int, stamp: int) -> None:
        words = (at, at + size - 8)
        self._wrong += sum(ctypes.c_uint64.from_address(word).value != stamp for word in words)

    def busy(self, stream: int, ns: int) -> None:
        self._allocator.clock_kernel(stream, ns)

    def after(self, stream: int, other: int) -> None:
        raise NotImplementedError("the allocator makes streams wait by itself")

    def mismatches(self) -> int:
        found, self._wrong = self._wrong, 0
        return found


def by_hand(context: Context) -> int:
    """An event behind a busy kernel is open until the kernel is done. How often it was open."""
    driver, work = open_both(context.rehearse)
    stream = work.streams[0]
    open_ = 0
    with driver:
        size = driver.capabilities().granularity
        base, page = driver.va_reserve(size), driver.page_create(size)
        event = driver.event_create()
        for round_ in range(ROUNDS):
            driver.map(base, size, page)
            driver.set_access(base, size)
            work.write(stream, base, size, round_)
            work.busy(stream, BUSY_NS)
            work.expect(stream, base, size, round_)
            driver.event_record(event, stream)
            open_ += not driver.event_query(event)
            driver.event_sync(event)
            if not driver.event_query(event):
                raise FailedError("an event was open after it had been waited for")
            driver.unmap(base, size)
            if work.mismatches():
                raise FailedError("a kernel before the event did not find what was written")
        driver.event_destroy(event)
        driver.page_release(size, page)
        driver.va_free(base, size)
    if not open_:
        raise FailedError("no event was ever open behind a busy kernel")
    return open_


def under_load(allocator: Any, work: Work, round_: int, taker: int) -> None:
    """Fills, frees every second block with work queued, takes the pages, looks at the rest."""
    owner = work.streams[0]
    blocks = [allocator.alloc(BLOCK, stream=owner) for _ in range(BLOCKS)]
    stamps = {at: (round_ << 16) + number for number, at in enumerate(blocks)}
    for at, stamp in stamps.items():
        work.write(owner, at, BLOCK, stamp)
    for at in blocks[::2]:
        work.busy(owner, BUSY_NS // BLOCKS)
        work.expect(owner, at, BLOCK, stamps[at])  # runs long after the free below
        allocator.free(at)
    wide = BLOCKS // 2 * BLOCK
    large = allocator.alloc(wide, stream=taker)
    mark = (1 << 40) + round_
    work.write(taker, large, wide, mark)
    work.expect(taker, large, wide, mark)
    for at in blocks[1::2]:
        work.expect(owner, at, BLOCK, stamps[at])
    allocator.free(large)
    for at in blocks[1::2]:
        allocator.free(at)
    wrong = work.mismatches()
    if wrong:
        raise FailedError(f"in round {round_} {wrong} words were not what had been written")


def run(context: Context) -> dict[str, Any]:
    from vmm.allocator import Allocator

    opened = by_hand(context)
    steals: dict[str, dict[str, int]] = {}
    for name, alias in (("alias", "1"), ("no alias", "0")):
        config = {
            "driver": "host" if context.rehearse else "cuda",
            "limit": str(BLOCKS * BLOCK),
            "alias": alias,
            "check": "2",
            **({"device_bytes": "1GiB"} if context.rehearse else {}),
        }
        allocator = Allocator(config)
        try:
            work: Any = AllocatorWork(allocator) if context.rehearse else CudaWork()
            for round_ in range(ROUNDS):
                under_load(allocator, work, round_, work.streams[round_ % 2])
            allocator.check()
            stats = allocator.stats()
            steals[name] = {key: stats[key] for key in stats if key.startswith("steals.")}
            steals[name]["waits"] = stats["waits"]
            if not any(steals[name].values()):
                raise FailedError(f"{name}: no page was ever taken from a freed block")
        finally:
            allocator.close()
    return {"rounds": ROUNDS, "events_open_behind_kernels": opened, "taken": steals}
