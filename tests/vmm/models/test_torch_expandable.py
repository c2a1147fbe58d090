# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each rule of expandable segments with addresses and pages worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.models.checks import assert_tiles, run_randomly
from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.best_fit import FREE, LIVE, UNMAPPED
from vmm.sim.models.torch_expandable import TorchExpandable

M = 1 << 20
BASE = 1 << 40
SPACING = -(-(1 << 40) // (20 * M)) * 20 * M  # between segments: 1 TiB in whole pages
MS = 1_000_000


def layout(model: TorchExpandable, count: int) -> list[tuple[int, int, int]]:
    """The first blocks: (MiB behind the first address, MiB, state)."""
    return [((b.address - BASE) // M, b.size // M, b.state) for b in model.blocks()[:count]]


def test_small_requests_fill_pages_of_2_mib_one_behind_the_other() -> None:
    model = TorchExpandable()
    assert model.alloc(0, 100) == BASE
    assert model.alloc(1, M) == BASE + 512
    assert (model.reserved, model.live) == (2 * M, 512 + M)
    # 1 MiB - 512 is left in the page: the next request begins there and goes on in a new page.
    assert model.alloc(2, M) == BASE + 512 + M
    assert model.reserved == 4 * M
    assert model.counters["maps"] == 2


def test_large_requests_map_pages_of_20_mib_and_leave_the_rest_free() -> None:
    model = TorchExpandable()
    assert model.alloc(0, 30 * M) == BASE
    assert model.reserved == 40 * M
    assert model.alloc(1, 10 * M) == BASE + 30 * M
    assert model.reserved == 40 * M


def test_any_rest_of_512_bytes_is_split_off_also_from_a_large_block() -> None:
    model = TorchExpandable()
    model.alloc(0, 20 * M - 512)
    assert model.blocks()[1].size == 512
    assert model.blocks()[1].state == FREE


def test_a_free_block_merges_with_free_neighbors_but_not_with_unmapped_ones() -> None:
    model = TorchExpandable()
    for id in range(4):
        model.alloc(id, 5 * M)
    model.free(1)
    model.free(3)
    model.free(2)
    assert layout(model, 2) == [(0, 5, LIVE), (5, 15, FREE)]
    assert layout(model, 3)[2][2] == UNMAPPED
    assert model.alloc(9, 15 * M) == BASE + 5 * M


def test_what_can_grow_counts_as_large_as_it_can_become() -> None:
    def filled() -> TorchExpandable:
        model = TorchExpandable()
        for id, size in enumerate((15, 5, 10)):
            model.alloc(id, size * M)
        return model  # 10 MiB are free at 30 MiB, and unmapped addresses follow

    model = filled()
    assert model.alloc(9, 8 * M) == BASE + 30 * M
    model = filled()
    model.free(0)
    # 10 MiB would fit better than the 15 MiB, but they could become much more.
    assert model.alloc(9, 8 * M) == BASE


def test_each_stream_and_each_kind_has_its_own_addresses_and_pages() -> None:
    model = TorchExpandable()
    places = [
        model.alloc(id, size, stream)
        for id, (size, stream) in enumerate([(512, 0), (512, 1), (2 * M, 0), (2 * M, 1)])
    ]
    assert places == [BASE + n * SPACING for n in range(4)]
    assert model.reserved == 2 * 2 * M + 2 * 20 * M


def test_private_pools_are_apart_and_their_pages_stay_until_the_pool_is_released() -> None:
    model = TorchExpandable(20 * M)
    model.alloc(0, 20 * M, 0, pool=7)
    model.free(0)
    with pytest.raises(OutOfMemory):
        model.alloc(1, 20 * M)
    model.release_pool(7)
    model.alloc(1, 20 * M)
    assert model.reserved == 20 * M


def test_addresses_are_nine_eighths_of_the_capacity() -> None:
    model = TorchExpandable(160 * M)
    model.alloc(0, 20 * M)
    assert layout(model, 2) == [(0, 20, LIVE), (20, 160, UNMAPPED)]


def test_without_memory_the_pages_of_another_stream_go_back_after_it_was_waited_for() -> None:
    model = TorchExpandable(60 * M)
    model.alloc(0, 40 * M, 0)
    model.free(0)
    model.alloc(1, 40 * M, 1)
    assert model.reserved == 40 * M
    wanted = {"maps": 4, "device_alloc": 4, "unmaps": 2, "device_free": 2, "syncs": 1, "retries": 1}
    assert {name: value for name, value in model.counters.items() if value} == wanted


def test_only_pages_that_are_wholly_free_are_unmapped() -> None:
    model = TorchExpandable(40 * M)
    model.alloc(0, 10 * M, 0)
    model.alloc(1, 30 * M, 0)
    model.free(1)
    model.alloc(2, 20 * M, 1)
    # Of the 30 MiB from 10 MiB on, one page lies wholly inside.
    assert layout(model, 3) == [(0, 10, LIVE), (10, 10, FREE), (20, 40, UNMAPPED)]
    assert model.counters["unmaps"] == 1
    # The free part and unmapped addresses behind it make room again once a page is there.
    model.free(2)
    assert model.alloc(3, 30 * M, 0) == BASE + 10 * M


def test_a_request_beyond_the_capacity_maps_nothing() -> None:
    model = TorchExpandable(40 * M)
    with pytest.raises(OutOfMemory, match=r"need more pages of 20971520, but 0 bytes"):
        model.alloc(0, 41 * M)
    assert model.reserved == 0
    assert model.counters["retries"] == 1


def test_a_recorded_stream_keeps_the_block_until_its_work_is_seen_to_be_done() -> None:
    for wait_until, reused in ((15 * MS - 1, False), (15 * MS, True)):
        model = TorchExpandable()
        place = model.alloc(0, 20 * M, 0)
        model.record_stream(0, 1)
        model.kernel(1, 10 * MS)
        model.free(0)  # the kernel ends at 10 ms; that is seen 5 ms later
        assert model.live == 0
        model.advance(wait_until)
        assert (model.alloc(1, 20 * M, 0) == place) is reused


def test_a_wait_of_the_host_ends_what_a_stream_held_back() -> None:
    model = TorchExpandable(lag_ns=100 * MS)
    place = model.alloc(0, 20 * M, 0)
    model.record_stream(0, 1)
    model.free(0)
    model.sync(1)
    assert model.alloc(1, 20 * M, 0) == place


def test_without_memory_events_are_waited_for() -> None:
    model = TorchExpandable(20 * M)
    model.alloc(0, 20 * M, 0)
    model.record_stream(0, 1)
    model.record_stream(0, 0)  # the own stream needs no event
    model.free(0)
    model.alloc(1, 20 * M, 0)
    assert [model.counters[name] for name in ("waits", "syncs", "retries")] == [1, 1, 1]


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(Invalid, match="torch_expandable has no option 'page'; known are lag_ns"):
        TorchExpandable(page=3)
    with pytest.raises(Invalid, match="small_page_mb of torch_expandable is 1, not a number at l"):
        TorchExpandable(small_page_mb=1)
    with pytest.raises(Invalid, match="capacity is -1"):
        TorchExpandable(-1)
    model = TorchExpandable()
    with pytest.raises(Invalid, match="id 3 is not allocated"):
        model.free(3)
    model.alloc(3, 1)
    with pytest.raises(Invalid, match="id 3 is allocated already"):
        model.alloc(3, 1)
    with pytest.raises(Invalid, match="size is -1"):
        model.alloc(4, -1)


@given(st.integers(0, 1 << 32), st.sampled_from([None, 100 * M, 333 * M]))
@settings(max_examples=25, deadline=None)
def test_random_requests_keep_the_rules(seed: int, capacity: int | None) -> None:
    model = TorchExpandable(capacity)
    run_randomly(model, seed, 300)
    assert_tiles(model.blocks())


@given(st.integers(0, 1 << 32))
@settings(max_examples=25, deadline=None)
def test_what_is_mapped_is_what_is_not_unmapped(seed: int) -> None:
    model = TorchExpandable(200 * M)
    run_randomly(model, seed, 200)
    mapped = sum(block.size for block in model.blocks() if block.state != UNMAPPED)
    assert mapped == model.reserved
    # With everything free and every event waited for, all of it can go back.
    with pytest.raises(OutOfMemory):
        model.alloc(-1, 201 * M, random.Random(seed).randrange(3))
    assert model.reserved == 0
