# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each rule of Paddle's first virtual-memory allocator with addresses worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.models.checks import SIZES, assert_tiles, run_randomly
from tests.vmm.models.naive import NaiveVmm
from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.paddle_vmm import PaddleVmm

M = 1 << 20
BASE = 1 << 40
MS = 1_000_000


def counted(model: PaddleVmm) -> dict[str, int]:
    return {name: value for name, value in model.counters.items() if value}


def test_a_split_request_takes_the_front() -> None:
    model = PaddleVmm()
    assert model.alloc(0, 1) == BASE
    assert model.alloc(1, 1) == BASE + 256
    assert (model.live, model.reserved) == (512, 2 * M)


def test_a_miss_asks_only_for_what_the_free_tail_lacks() -> None:
    model = PaddleVmm()
    first = -(-(M - 257) // 256) * 256
    assert model.alloc(0, M - 257) == BASE
    # 2 MiB - first are free; the rest of 2 MiB - 256 fits into one more handle of 2 MiB.
    assert model.alloc(1, 2 * M - 257) == BASE + first
    assert model.reserved == 4 * M
    assert counted(model) == {"device_alloc": 2, "maps": 2}
    # One handle for a request, however large.
    model.alloc(2, 100 * M)
    assert model.counters["device_alloc"] == 3


def test_without_a_free_tail_it_asks_for_the_whole_request() -> None:
    model = PaddleVmm()
    model.alloc(0, 2 * M)
    assert model.alloc(1, 3 * M) == BASE + 2 * M
    assert model.reserved == 6 * M


def test_a_block_is_split_if_more_than_256_or_more_than_half_of_it_are_left() -> None:
    for hole, rest_is_free in ((512, False), (768, True)):
        model = PaddleVmm()
        model.alloc(0, hole)
        model.alloc(1, 256)
        model.free(0)
        assert model.alloc(2, 256) == BASE
        assert model.live == 512
        following = model.alloc(3, 256)
        assert following == (BASE + 256 if rest_is_free else BASE + hole + 256)


def test_the_smallest_block_that_fits_is_taken() -> None:
    model = PaddleVmm()
    places = [model.alloc(id, size * M) for id, size in enumerate((8, 1, 4, 1, 3, 1))]
    for id in (0, 2, 4):
        model.free(id)
    assert model.alloc(6, 3 * M) == places[4]
    assert model.alloc(7, 2 * M) == places[2]
    assert model.alloc(8, 3 * M) == places[0]


def test_nothing_is_given_back() -> None:
    model = PaddleVmm()
    for id in range(5):
        model.alloc(id, 3 * M)
    for id in range(5):
        model.free(id)
    assert model.reserved == 16 * M  # 4, then what the tail of 1 lacks: 2, 4, 2, 4 MiB
    assert [block.size for block in model.blocks()] == [16 * M]


def test_each_stream_and_each_pool_has_its_own_heap() -> None:
    model = PaddleVmm()
    places = [
        model.alloc(id, 256, stream, pool)
        for id, (stream, pool) in enumerate([(0, 0), (1, 0), (0, 3)])
    ]
    assert places == [BASE, BASE + (1 << 40), BASE + (2 << 40)]
    assert model.reserved == 6 * M


def test_small_requests_can_have_a_heap_of_their_own_that_grows_in_steps() -> None:
    model = PaddleVmm(small_pool_mb=1, small_growth_mb=10, large_growth_mb=32)
    assert model.alloc(0, M) == BASE
    assert model.alloc(1, M + 1) == BASE + (1 << 40)
    assert model.alloc(2, 5) == BASE + M
    assert model.reserved == 42 * M


def striped(**options: object) -> PaddleVmm:
    """A full device of 8 MiB of which the first and the third quarter are free."""
    model = PaddleVmm(8 * M, **options)
    for id in range(4):
        model.alloc(id, 2 * M)
    model.free(0)
    model.free(2)
    return model


def test_without_compaction_two_holes_are_no_room() -> None:
    model = striped()
    with pytest.raises(OutOfMemory, match="8388608 of 8388608 bytes are mapped and 4194304 are"):
        model.alloc(4, 4 * M)


def test_compaction_copies_live_blocks_down_and_leaves_one_tail() -> None:
    model = striped(compact=1)
    assert model.alloc(4, 4 * M) == BASE + 4 * M
    assert [model.address_of(id) for id in (1, 3)] == [BASE, BASE + 2 * M]
    assert counted(model) == {
        "device_alloc": 4,
        "maps": 4,
        "syncs": 2,
        "retries": 1,
        "bytes_moved": 4 * M,
    }
    for id in (1, 3, 4):
        model.free(id)
    assert [block.size for block in model.blocks()] == [8 * M]


def test_blocks_below_the_first_hole_stay_and_the_tail_only_grows_by_its_lack() -> None:
    model = PaddleVmm(10 * M, compact=1)
    for id in range(4):
        model.alloc(id, 2 * M)
    model.free(1)
    assert model.alloc(4, 4 * M) == BASE + 6 * M  # a hole of 2 MiB, and 2 more from the driver
    assert model.reserved == 10 * M
    assert model.counters["bytes_moved"] == 4 * M
    assert model.address_of(0) == BASE


def test_compaction_waits_for_the_device_so_held_blocks_are_free_at_the_second_try() -> None:
    model = PaddleVmm(4 * M, compact=1)
    model.alloc(0, 4 * M, 0)
    model.record_stream(0, 1)
    model.free(0)
    assert model.alloc(1, 4 * M, 0) == BASE
    assert model.counters["retries"] == 2


def test_what_a_recorded_stream_holds_is_free_once_that_stream_is_past() -> None:
    model = PaddleVmm()
    model.alloc(0, 2 * M, 0)
    model.record_stream(0, 1)
    model.kernel(1, 3 * MS)
    model.free(0)
    model.advance(8 * MS - 1)
    assert model.alloc(1, 2 * M, 0) == BASE + 2 * M
    model.advance(8 * MS)
    assert model.alloc(2, 2 * M, 0) == BASE


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Invalid, match="paddle_vmm has no option 'compacts'; known are lag_ns, co"):
        PaddleVmm(compacts=True)


@given(st.integers(0, 1 << 32))
@settings(max_examples=30, deadline=None)
def test_addresses_are_those_of_the_naive_allocator(seed: int) -> None:
    rng = random.Random(seed)
    model, naive = PaddleVmm(), NaiveVmm()
    for id in range(150):
        if rng.random() < 0.45 and naive.live:
            gone = rng.choice(sorted(naive.live))
            model.free(gone)
            naive.free(gone)
        else:
            size = rng.choice(SIZES) + rng.randrange(600)
            assert model.alloc(id, size) == naive.alloc(id, size)
        assert model.reserved == naive.reserved


@given(st.integers(0, 1 << 32), st.sampled_from([None, 100 * M, 333 * M]), st.integers(0, 1))
@settings(max_examples=30, deadline=None)
def test_random_requests_keep_the_rules(seed: int, capacity: int | None, compact: int) -> None:
    model = PaddleVmm(capacity, compact=compact)
    run_randomly(model, seed, 300)
    assert_tiles(model.blocks())
    assert sum(block.size for block in model.blocks()) == model.reserved
