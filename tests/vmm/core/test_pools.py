# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Private pools: whose pages they get, their caps, and their sleep."""

from __future__ import annotations

import ctypes

import pytest

from tests.vmm.core.small import PAGE, opened, pages_of
from vmm.allocator import Allocator
from vmm.errors import DriverError, Invalid, OutOfMemory


def test_pages_of_a_private_pool_go_to_others_only_before_a_request_fails() -> None:
    with opened(limit=24 * PAGE) as allocator:
        pool = allocator.pool_create("private")
        allocator.free(allocator.alloc(12 * PAGE, pool=pool))
        allocator.alloc(12 * PAGE)  # new pages, though as many lie free in the pool
        stats = allocator.stats()
        assert stats["pages.created"] == 24
        assert stats["steals.move"] + stats["steals.alias"] == 0
        assert allocator.compact() == 0  # as much as it can, and that is nothing
        assert allocator.plan([10 * PAGE]) == "fits_after_steal"
        assert allocator.alloc(10 * PAGE)
        with pytest.raises(OutOfMemory, match=r"pages that could move 0 B"):
            allocator.alloc(12 * PAGE, pool=pool)


def test_pages_of_a_sharing_pool_move() -> None:
    with opened(limit=16 * PAGE) as allocator:
        pool = allocator.pool_create("sharing", shared_pages=True)
        at = allocator.alloc(12 * PAGE, pool=pool)
        behind = set(pages_of(allocator, at, 12 * PAGE))
        allocator.free(at)
        assert allocator.plan([10 * PAGE]) == "fits_after_steal"
        got = set(pages_of(allocator, allocator.alloc(10 * PAGE), 10 * PAGE))
        assert len(got & behind) >= 6  # four more could be created


def test_pool_at_its_cap_gathers_its_own_pages() -> None:
    with opened(limit=64 * PAGE) as allocator:
        pool = allocator.pool_create("capped", cap=8 * PAGE)
        parts = [allocator.alloc(PAGE, pool=pool) for _ in range(8)]
        for at in parts[::2]:
            allocator.free(at)
        at = allocator.alloc(4 * PAGE, pool=pool)
        stats = allocator.stats()
        assert (stats["steals.alias"], stats["pages.created"]) == (4, 8)
        with pytest.raises(OutOfMemory, match=r"cap of the pool 32\.00 KiB"):
            allocator.alloc(PAGE, pool=pool)
        allocator.free(at)


def test_a_sleeping_pool_refuses_requests_of_any_size() -> None:
    with opened(small_max=1024) as allocator:
        pool = allocator.pool_create("one kind")
        allocator.alloc(4 * PAGE, pool=pool)
        assert allocator.pool_sleep(pool) == 4 * PAGE
        with pytest.raises(Invalid, match="asleep"):
            allocator.alloc(512, pool=pool)
        with pytest.raises(Invalid, match="asleep already"):
            allocator.pool_sleep(pool)
        allocator.pool_wake(pool)
        assert allocator.alloc(512, pool=pool)


def test_an_empty_pool_sleeps_too() -> None:
    with opened() as allocator:
        pool = allocator.pool_create("empty")
        assert allocator.pool_sleep(pool) == 0
        with pytest.raises(Invalid, match="asleep"):
            allocator.alloc(PAGE, pool=pool)
        allocator.pool_wake(pool)
        with pytest.raises(Invalid, match="not asleep"):
            allocator.pool_wake(pool)


def test_a_waking_pool_takes_nothing_from_private_ones() -> None:
    with opened(limit=8 * PAGE) as allocator:
        sleeper, private = allocator.pool_create("sleeper"), allocator.pool_create("private")
        allocator.alloc(4 * PAGE, pool=sleeper)
        allocator.pool_sleep(sleeper)
        allocator.free(allocator.alloc(8 * PAGE, pool=private))
        with pytest.raises(OutOfMemory):
            allocator.pool_wake(sleeper)
        allocator.pool_release(private)
        allocator.pool_wake(sleeper)


def test_sleep_counts_as_a_synchronization() -> None:
    with opened() as allocator:
        pool = allocator.pool_create("p")
        allocator.alloc(PAGE, pool=pool)
        allocator.pool_sleep(pool)
        assert allocator.stats()["syncs"] == 1


def many_pools(allocator: Allocator) -> int:
    for number in range(40):
        pool = allocator.pool_create(str(number))
        allocator.alloc(1 << 20, pool=pool)
        allocator.alloc(100, pool=pool)
    return allocator.stats()["allocation.all.current"]


def test_many_pools_find_address_range() -> None:
    with Allocator(driver="null") as allocator:
        assert many_pools(allocator) == 80


# Four pages are mapped before the sleep, which unmaps two ranges.
@pytest.mark.parametrize(
    ("fail", "failing_wakes"),
    [
        ("unmap@2;map@5", 0),  # half of it gone, and one page could not be put back
        ("unmap@2;set_access@4", 0),  # put back, but nobody knows how
        ("map@8", 1),  # waking fails and is undone
        ("map@8;unmap@3", 1),  # waking fails and is not undone
        ("map@8;unmap@3..5", 2),  # and the next try cannot take away what is left over
        ("copy_in@2", 1),
    ],
)
def test_failures_of_sleep_and_wake_lose_nothing(fail: str, failing_wakes: int) -> None:
    with opened(driver="host", device_bytes=64 * PAGE, small_max=512, fail=fail) as allocator:
        pool = allocator.pool_create("p")
        live = [allocator.alloc(size, pool=pool) for size in (PAGE, 512, 2 * PAGE)]
        for number, at in enumerate(live):
            ctypes.c_uint64.from_address(at).value = number + 7
        if "unmap@2" in fail:
            with pytest.raises(DriverError, match="it is asleep now and can be woken"):
                allocator.pool_sleep(pool, keep=True)
        else:
            allocator.pool_sleep(pool, keep=True)
        for _ in range(failing_wakes):
            with pytest.raises(DriverError, match="it sleeps on"):
                allocator.pool_wake(pool)
            with pytest.raises(Invalid, match="asleep"):
                allocator.alloc(PAGE, pool=pool)
        allocator.pool_wake(pool)
        for number, at in enumerate(live):
            assert ctypes.c_uint64.from_address(at).value == number + 7
            allocator.free(at)
        allocator.pool_release(pool)
        allocator.trim()
        stats = allocator.stats()
        assert stats["pages.created"] == stats["pages.quarantined"]
