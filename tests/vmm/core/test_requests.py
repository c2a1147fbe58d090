# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where requests go, and what is said when they go nowhere."""

from __future__ import annotations

import os

import pytest

from tests.vmm.core.small import PAGE, block_at, opened
from vmm.allocator import Allocator
from vmm.errors import Dead, Invalid, OutOfMemory


def test_best_fit_and_split() -> None:
    with opened() as allocator:
        free = [
            allocator.alloc(size) for size in (512, 8 * PAGE, 512, 3 * PAGE, 512, 5 * PAGE, 512)
        ]
        for at in free[1::2]:
            allocator.free(at)
        assert allocator.alloc(2 * PAGE + 100) == free[3]  # of 3, 5 and 8 pages
        assert block_at(allocator, free[3]).size == 2 * PAGE + 512
        assert allocator.alloc(PAGE - 512) == free[3] + 2 * PAGE + 512  # the rest, to the byte
        assert allocator.alloc(3 * PAGE) == free[5]
        assert allocator.stats()["steals.move"] == 0


def test_small_requests_lie_apart() -> None:
    with opened(small_max=1024) as allocator:
        small, large = allocator.alloc(1024), allocator.alloc(1025)
        arenas = {arena.base: arena.small for arena in allocator.arenas()}
        found = [max(base for base in arenas if base <= at) for at in (small, large)]
        assert [arenas[base] for base in found] == [1, 0]


def test_free_pages_are_gathered_by_moving() -> None:
    with opened(limit=8 * PAGE) as allocator:
        parts = [allocator.alloc(PAGE) for _ in range(8)]
        for at in parts[::2]:
            allocator.free(at)
        allocator.compact()  # synchronizes: no fence is open
        allocator.alloc(4 * PAGE)
        stats = allocator.stats()
        assert (stats["steals.move"], stats["steals.alias"], stats["pages.created"]) == (4, 0, 8)


def test_pinned_pages_stay() -> None:
    with opened(limit=8 * PAGE) as allocator:
        parts = [allocator.alloc(PAGE) for _ in range(8)]
        allocator.pin(parts[2], PAGE, "registered")
        allocator.pin(parts[4], 1, "ipc")
        for at in parts[::2]:
            allocator.free(at)
        with pytest.raises(OutOfMemory, match=r"pinned \(ipc\) 4\.00 KiB.*pinned \(registered\) 4"):
            allocator.alloc(3 * PAGE)
        allocator.alloc(2 * PAGE)
        allocator.unpin(parts[2], PAGE, "registered")
        assert allocator.alloc(PAGE) in (parts[2], parts[4])


@pytest.mark.parametrize("check", [0, 1, 2])
def test_any_level_of_checks(check: int) -> None:
    with opened(check=check) as allocator:
        at = allocator.alloc(PAGE)
        allocator.prefetch([3 * PAGE])
        allocator.free(at)
        allocator.check()


@pytest.mark.parametrize("size", [2**40, 2**48, 2**48 + 1, 2**63, 2**64 - 1])
def test_absurd_sizes_reserve_nothing(size: int) -> None:
    with opened() as allocator:
        with pytest.raises(OutOfMemory, match=r"size|out of memory"):
            allocator.alloc(size)
        assert allocator.plan([size]) == "does_not_fit"
        with pytest.raises(OutOfMemory):
            allocator.prefetch([size])
        assert allocator.arenas() == []


def test_plan_keeps_the_order_of_requests() -> None:
    with opened(limit=11 * PAGE) as allocator:
        allocator.alloc(512)
        hole = allocator.alloc(5 * PAGE)
        allocator.alloc(512)
        allocator.alloc(5 * PAGE - 1024)
        allocator.free(hole)
        # One page can be created. Taken first, the small request breaks the hole up.
        assert allocator.plan([5 * PAGE, 512]) == "fits"
        assert allocator.plan([512, 5 * PAGE]) != "fits"
        allocator.alloc(512)
        allocator.alloc(5 * PAGE)
        stats = allocator.stats()
        assert stats["steals.move"] + stats["steals.alias"] == 4


def test_prefetch_maps_ahead() -> None:
    with opened() as allocator:
        allocator.prefetch([3 * PAGE, 5 * PAGE])
        before = allocator.stats()
        assert before["allocation.all.current"] == 0
        allocator.alloc(3 * PAGE)
        allocator.alloc(5 * PAGE)
        after = allocator.stats()
        assert after["driver.map.calls"] == before["driver.map.calls"] == 8


def test_sentence_of_out_of_memory() -> None:
    with opened(limit=8 * PAGE) as allocator:
        allocator.alloc(6 * PAGE, tag="weights")
        allocator.alloc(PAGE, tag="activations")
        with pytest.raises(OutOfMemory) as caught:
            allocator.alloc(2 * PAGE)
        text = str(caught.value)
        for part in (
            "out of memory for 8.00 KiB (8192 B)",
            "limit 32.00 KiB",
            "live 28.00 KiB",
            "most by tag: weights 24.00 KiB (24576 B), activations 4.00 KiB (4096 B)",
        ):
            assert part in text
        assert allocator.stats()["num_ooms"] == 1


def test_callback_frees_and_allocates() -> None:
    with opened(limit=8 * PAGE) as allocator:
        spare = [allocator.alloc(4 * PAGE) for _ in range(2)]
        seen = []

        def give(device: int, size: int) -> bool:
            seen.append((device, size))
            allocator.free(spare.pop())
            allocator.free(allocator.alloc(PAGE))
            allocator.trim()
            return True

        allocator.on_oom(give)
        assert allocator.alloc(6 * PAGE)
        assert seen == [(0, 6 * PAGE)] * 2
        assert allocator.stats()["num_alloc_retries"] == 2
        allocator.remove_on_oom(give)


def test_limits() -> None:
    with opened(limit=8 * PAGE) as allocator:
        at = allocator.alloc(8 * PAGE)
        allocator.free(at)
        allocator.set_limit(4 * PAGE)
        assert allocator.stats()["reserved_bytes.all.current"] == 4 * PAGE
        with pytest.raises(OutOfMemory):
            allocator.alloc(5 * PAGE)
        allocator.set_limit(0)  # that of the device
        assert allocator.alloc(200 * PAGE)


def test_streams_without_end_are_refused() -> None:
    with Allocator(driver="null") as allocator:
        for stream in range(1, 65533):
            allocator.alloc(512, stream=stream)
        with pytest.raises(Invalid, match="stream: 65533"):
            allocator.alloc(512, stream=65533)
        allocator.check()
        assert allocator.alloc(512, stream=65532)


def test_child_of_a_fork_is_dead() -> None:
    with opened() as allocator:
        at = allocator.alloc(PAGE)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                allocator.free(at)
            except Dead:
                code = 0
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        allocator.free(at)
