# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Memory that other streams may still use stays theirs, through merges and splits."""

from __future__ import annotations

from tests.vmm.core.small import PAGE, block_at, opened


def test_merged_blocks_keep_open_fences() -> None:
    # Neighbors: two that two streams have done with, then one that a kernel still uses.
    with opened(limit=64 * PAGE) as allocator:
        guard = allocator.alloc(512, stream=1)
        larger = allocator.alloc(2 * PAGE, stream=1)
        smaller = allocator.alloc(PAGE, stream=1)
        busy = allocator.alloc(PAGE, stream=1)
        allocator.alloc(512, stream=1)
        for at in (larger, smaller, busy):
            allocator.record_stream(at, 2)
        allocator.free(larger)
        allocator.free(smaller)
        allocator.alloc(8 * PAGE, stream=3)  # somebody wants to know: events are recorded
        allocator.clock_kernel(2, 1000)
        allocator.free(busy)
        allocator.alloc(8 * PAGE, stream=3)
        assert block_at(allocator, busy).fence > 0
        assert allocator.alloc(3 * PAGE + 512, stream=3) > guard + 6 * PAGE
        allocator.clock_set(1000)
        allocator.alloc(8 * PAGE, stream=3)
        assert block_at(allocator, busy).fence == 0
        assert allocator.alloc(4 * PAGE, stream=3) == larger


def test_rest_of_a_split_keeps_the_fence() -> None:
    with opened(limit=64 * PAGE, cross_stream="never") as allocator:
        at = allocator.alloc(8 * PAGE, stream=1)
        allocator.clock_kernel(1, 1000)
        allocator.free(at)
        assert allocator.alloc(2 * PAGE, stream=1) == at
        rest = block_at(allocator, at + 2 * PAGE)
        assert (rest.size, rest.stream, rest.fence) == (6 * PAGE, 1, 1)
        assert not at <= allocator.alloc(2 * PAGE, stream=2) < at + 8 * PAGE
        allocator.clock_set(1000)
        assert allocator.alloc(6 * PAGE, stream=1) == at + 2 * PAGE


def test_other_stream_waits_on_the_device() -> None:
    with opened(limit=8 * PAGE, cross_stream="wait") as allocator:
        at = allocator.alloc(8 * PAGE, stream=1)
        allocator.clock_kernel(1, 1000)
        allocator.free(at)
        assert allocator.alloc(8 * PAGE, stream=2) == at
        stats = allocator.stats()
        assert (stats["waits"], stats["syncs"]) == (1, 0)
        # It waits for that already: no second wait for what is as old.
        allocator.free(at)
        assert allocator.alloc(8 * PAGE, stream=2) == at
        assert allocator.stats()["waits"] == 1


def test_old_mapping_stays_until_the_fence_is_done() -> None:
    with opened(limit=8 * PAGE) as allocator:
        parts = [allocator.alloc(PAGE, stream=1) for _ in range(8)]
        allocator.clock_kernel(1, 1000)
        for at in parts[::2]:
            allocator.free(at)
        at = allocator.alloc(4 * PAGE, stream=1)
        assert at > parts[-1]
        stats = allocator.stats()
        assert (stats["steals.alias"], stats["steals.move"], stats["pages.stale"]) == (4, 0, 4)
        slots = {slot.address: slot for slot in allocator.slots()}
        assert all(slots[part].stale for part in parts[::2])
        old = sorted(slots[part].page for part in parts[::2])
        assert sorted(slots[at + k * PAGE].page for k in range(4)) == old
        assert allocator.trim() == 0  # still in use: nothing to give back
        allocator.clock_set(1000)
        allocator.trim()
        assert allocator.stats()["pages.stale"] == 0
