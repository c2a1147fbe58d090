# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each rule of Paddle's auto_growth with addresses worked out by hand."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.models.checks import SIZES, assert_tiles, run_randomly
from tests.vmm.models.naive import NaiveAutoGrowth
from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.paddle_auto_growth import PaddleAutoGrowth

M = 1 << 20
BASE = 1 << 40
MS = 1_000_000


def counted(model: PaddleAutoGrowth) -> dict[str, int]:
    return {name: value for name, value in model.counters.items() if value}


def test_requests_are_aligned_to_256_and_get_chunks_of_their_size() -> None:
    model = PaddleAutoGrowth()
    assert model.alloc(0, 1) == BASE
    assert model.alloc(1, 257) == BASE + 512  # where cudaMalloc can go on
    assert (model.live, model.reserved) == (256 + 512, 256 + 512)
    assert counted(model) == {"device_alloc": 2}


def test_a_split_request_takes_the_tail() -> None:
    model = PaddleAutoGrowth(chunk_size_mb=1)
    assert model.alloc(0, 256) == BASE + M - 256
    assert model.alloc(1, 300) == BASE + M - 256 - 512
    assert model.reserved == M


def test_the_smallest_block_that_fits_is_taken_from_whatever_chunk() -> None:
    model = PaddleAutoGrowth()
    places = [model.alloc(id, size * M) for id, size in enumerate((8, 3, 4))]
    for id in range(3):
        model.free(id)
    assert model.alloc(3, 4 * M) == places[2]
    assert model.alloc(4, 2 * M) == places[1] + M
    assert model.alloc(5, 2 * M) == places[0] + 6 * M
    assert model.reserved == 15 * M


def test_neighbors_merge_inside_a_chunk_only() -> None:
    model = PaddleAutoGrowth()
    for id in range(2):
        model.alloc(id, M)
    for id in range(2):
        model.free(id)
    assert [block.size for block in model.blocks()] == [M, M]
    model.alloc(2, 2 * M)
    assert model.reserved == 4 * M
    model.free(2)
    parts = [model.alloc(id, M // 2) for id in (3, 4, 5, 6)]
    assert parts == [BASE + M // 2, BASE, BASE + M + M // 2, BASE + M]
    for id in (3, 5, 4, 6):
        model.free(id)
    assert [block.size for block in model.blocks()] == [M, M, 2 * M]


def test_padding_is_added_before_the_alignment() -> None:
    model = PaddleAutoGrowth(padding=1)
    model.alloc(0, 256)
    assert model.live == 512


def test_without_memory_idle_chunks_go_back_and_the_request_is_tried_again() -> None:
    model = PaddleAutoGrowth(4 * M)
    for id in range(3):
        model.alloc(id, M)
    model.free(0)
    model.free(2)
    model.alloc(3, 3 * M)
    assert model.reserved == 4 * M
    assert counted(model) == {"device_alloc": 4, "device_free": 2, "retries": 1, "syncs": 1}


def test_a_chunk_that_is_partly_used_stays() -> None:
    model = PaddleAutoGrowth(4 * M)
    model.alloc(0, 4 * M)
    model.free(0)
    model.alloc(1, 256)
    with pytest.raises(OutOfMemory, match=r"need a chunk of 4194304, but 4194304 of 4194304"):
        model.alloc(2, 4 * M)
    assert counted(model) == {"device_alloc": 1, "retries": 2}


def test_each_stream_has_its_own_allocator_and_the_chunks_of_all_go_back_at_last() -> None:
    model = PaddleAutoGrowth(4 * M)
    first = model.alloc(0, 2 * M, 0)
    model.free(0)
    assert model.alloc(1, 2 * M, 1) != first
    assert model.alloc(2, 2 * M, 0) == first
    model.free(2)
    model.alloc(3, 2 * M, 1)
    assert model.reserved == 4 * M
    assert counted(model) == {"device_alloc": 3, "device_free": 1, "retries": 1, "syncs": 1}


def test_what_a_recorded_stream_holds_is_looked_at_but_not_waited_for() -> None:
    model = PaddleAutoGrowth(2 * M)
    place = model.alloc(0, 2 * M, 0)
    model.record_stream(0, 1)
    model.free(0)
    with pytest.raises(OutOfMemory):
        model.alloc(1, 2 * M, 0)
    model.advance(5 * MS)
    assert model.alloc(2, 2 * M, 0) == place
    assert model.counters["waits"] == 0


def test_giving_chunks_back_waits_for_the_device_so_held_blocks_are_free_after_it() -> None:
    model = PaddleAutoGrowth(4 * M)
    held = model.alloc(0, 2 * M, 0)
    model.record_stream(0, 1)
    model.alloc(1, M, 0)
    model.free(0)
    model.free(1)
    # The idle MiB is not enough for three, but cudaFree waited: the other two are idle now, too.
    model.alloc(2, 3 * M, 0)
    assert model.reserved == 3 * M
    assert held not in [block.address for block in model.blocks()]


def test_idle_chunks_can_go_back_at_once_or_at_a_miss() -> None:
    model = PaddleAutoGrowth(free_idle_chunk=1)
    model.alloc(0, M)
    model.free(0)
    assert (model.reserved, model.counters["syncs"]) == (0, 1)
    model = PaddleAutoGrowth(free_when_no_cache_hit=1)
    model.alloc(0, M)
    model.free(0)
    model.alloc(1, 2 * M)
    assert model.reserved == 2 * M


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Invalid, match="paddle_auto_growth has no option 'chunk'"):
        PaddleAutoGrowth(chunk=1)
    with pytest.raises(Invalid, match=r"free_idle_chunk of .* is 2, not a number from 0 to 1"):
        PaddleAutoGrowth(free_idle_chunk=2)


@given(st.integers(0, 1 << 32), st.sampled_from([0, 1, 10]))
@settings(max_examples=20, deadline=None)
def test_addresses_are_those_of_the_naive_allocator(seed: int, chunk: int) -> None:
    rng = random.Random(seed)
    model, naive = PaddleAutoGrowth(chunk_size_mb=chunk), NaiveAutoGrowth(chunk * M)
    for id in range(150):
        if rng.random() < 0.45 and naive.live:
            gone = rng.choice(sorted(naive.live))
            model.free(gone)
            naive.free(gone)
        else:
            size = rng.choice(SIZES) + rng.randrange(600)
            assert model.alloc(id, size) == naive.alloc(id, size)
        assert model.reserved == naive.reserved
        assert model.live == sum(row[1] for row in naive.live.values())


@given(st.integers(0, 1 << 32), st.sampled_from([None, 100 * M, 333 * M]), st.integers(0, 1))
@settings(max_examples=20, deadline=None)
def test_random_requests_keep_the_rules(seed: int, capacity: int | None, at_once: int) -> None:
    model = PaddleAutoGrowth(capacity, free_idle_chunk=at_once)
    run_randomly(model, seed, 300)
    assert_tiles(model.blocks())
    assert sum(block.size for block in model.blocks()) == model.reserved
