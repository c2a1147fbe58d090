# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Several threads on one allocator of the host driver, each with numbers in its own blocks."""

from __future__ import annotations

import random
import threading
from typing import Any

from benchmarks.vmm.soaking import stamps

PAGE = 64 << 10
THREADS = 4


def _work(allocator: Any, seed: int, operations: int, found: list[str]) -> None:
    from vmm.errors import OutOfMemory

    chance = random.Random(seed)
    live: dict[int, tuple[int, int]] = {}
    for number in range(operations):
        draw = chance.random()
        if draw < 0.52:
            size = max(8, min(1 << 20, int(chance.lognormvariate(9.5, 2))))
            try:
                at = allocator.alloc(size, stream=chance.randrange(3))
            except OutOfMemory:
                continue
            stamps.write(at, size, PAGE, seed << 32 | number)
            live[at] = (size, seed << 32 | number)
        elif draw < 0.95 and live:
            at = chance.choice(list(live))
            size, stamp = live.pop(at)
            if stamps.wrong(at, size, PAGE, stamp) is not None:
                found.append(f"thread {seed}: the content of {at:#x} has changed")
                return
            if chance.random() < 0.2:
                allocator.record_stream(at, chance.randrange(3))
            allocator.free(at)
        elif draw < 0.97:
            allocator.trim(PAGE)
        elif draw < 0.98:
            allocator.stats()
        else:
            allocator.clock_kernel(chance.randrange(3), 1000)
    for at, (size, stamp) in live.items():
        if stamps.wrong(at, size, PAGE, stamp) is not None:
            found.append(f"thread {seed}: the content of {at:#x} has changed")
        allocator.free(at)


def play_threads(seed: int, operations: int = 1500) -> str:
    """What was violated, "" if nothing."""
    from vmm.allocator import Allocator
    from vmm.errors import VmmError

    found: list[str] = []

    def guarded(allocator: Any, number: int) -> None:
        try:
            _work(allocator, number, operations, found)
        except VmmError as error:
            found.append(f"thread {number}: {error}")

    with Allocator(
        driver="host", granularity=PAGE, page=PAGE, small_max=16 << 10, device_bytes="16MiB"
    ) as allocator:
        running = [
            threading.Thread(target=guarded, args=(allocator, seed * THREADS + number))
            for number in range(THREADS)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        try:
            allocator.check()
        except VmmError as error:
            found.append(str(error))
        stats = allocator.stats()
        if not found and stats["allocation.all.current"]:
            found.append(f"{stats['allocation.all.current']} blocks are live after the last free")
    return "; ".join(found)
