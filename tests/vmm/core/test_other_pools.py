# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What pools keep to themselves, and what they give before somebody runs out of memory."""

import pytest

import vmm

MIB = 1 << 20


@pytest.fixture
def allocator():
    with vmm.Allocator(driver="host", limit="64MiB", check=2, checking=1) as made:
        yield made


def test_idle_pages_of_a_pool_serve_a_request_that_would_fail(allocator):
    pool = allocator.pool_create("rollout")
    allocator.free(allocator.alloc(60 * MIB, pool=pool))
    assert allocator.plan([40 * MIB]) == "fits_after_steal"
    assert allocator.alloc(40 * MIB)
    assert allocator.stats()["reserved_bytes.all.current"] == 64 * MIB


def test_what_is_live_in_a_pool_is_not_given(allocator):
    pool = allocator.pool_create("rollout")
    allocator.alloc(60 * MIB, pool=pool)
    assert allocator.plan([40 * MIB]) == "does_not_fit"
    with pytest.raises(vmm.OutOfMemory, match=r"limit 64\.00 MiB .* live 60\.00 MiB"):
        allocator.alloc(40 * MIB)


def test_a_pool_sleeps_and_wakes_with_the_pages_that_hold_something(allocator):
    pool = allocator.pool_create("rollout")
    blocks = [allocator.alloc(4 * MIB, pool=pool) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    held = allocator.stats()["reserved_bytes.all.current"]
    assert allocator.pool_sleep(pool) == held >= 32 * MIB
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    with pytest.raises(
        vmm.OutOfMemory,
        match=r"live 16\.00 MiB .* of which asleep 16\.00 MiB .* free but mapped 0 B",
    ):
        allocator.alloc(100 * MIB)
    allocator.pool_wake(pool)
    assert allocator.stats()["reserved_bytes.all.current"] == 16 * MIB


def test_events_carry_real_time_unless_somebody_drives_the_clock(allocator):
    allocator.record_start()
    allocator.alloc(1)
    allocator.alloc(1)
    first, second = (int(t) for t in allocator.record_read()[0]["t_ns"][-2:])
    assert 0 < first <= second
    allocator.clock_set(5)
    allocator.alloc(1)
    assert allocator.record_read()[0]["t_ns"][-1] == 5
