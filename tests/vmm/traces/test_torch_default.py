# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each rule of the allocator with addresses worked out by hand. New segments lie 1 GiB apart."""

from __future__ import annotations

from typing import Any

import pytest

from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.torch_default import TorchDefault

K, M, G = 1 << 10, 1 << 20, 1 << 30


def make(capacity: int | None = None, **options: Any) -> TorchDefault:
    segments: list[int] = []

    def address(size: int, stream: int, pool: int) -> int:
        segments.append(size)
        return len(segments) * G

    model = TorchDefault(capacity, segment_address=address, **options)
    model.asked = segments  # type: ignore[attr-defined]
    return model


def asked(model: TorchDefault) -> list[int]:
    """The sizes of the segments that were asked from the driver."""
    return model.asked  # type: ignore[attr-defined, no-any-return]


def layout(model: TorchDefault) -> list[tuple[int, int, int]]:
    return [(block.address, block.size, block.state) for block in model.blocks()]


def test_small_requests_share_a_segment_of_2_mib() -> None:
    model = make()
    assert model.alloc(0, 100) == G
    assert model.alloc(1, 600) == G + 512
    assert model.alloc(2, 1) == G + 1536
    assert asked(model) == [2 * M]
    assert layout(model) == [
        (G, 512, 1),
        (G + 512, 1024, 1),
        (G + 1536, 512, 1),
        (G + 2048, 2 * M - 2048, 0),
    ]
    assert (model.reserved, model.live) == (2 * M, 2048)


def test_one_mib_is_small_and_a_byte_more_is_large() -> None:
    model = make()
    assert [model.alloc(at, M) for at in range(3)] == [G, G + M, 2 * G]
    assert model.alloc(3, M + 1) == 3 * G
    assert model.alloc(4, 5 * M) == 3 * G + M + 512
    assert asked(model) == [2 * M, 2 * M, 20 * M]


def test_from_10_mib_on_a_request_has_a_segment_of_its_own() -> None:
    model = make()
    assert model.alloc(0, 10 * M - 512) == G
    assert model.alloc(1, 10 * M) == G + 10 * M - 512  # the rest of the 20 MiB
    assert model.alloc(2, 10 * M) == 2 * G
    assert model.alloc(3, 10 * M + 1) == 3 * G
    assert asked(model) == [20 * M, 10 * M, 12 * M]


def test_a_rest_of_1_mib_stays_with_a_large_block() -> None:
    model = make()
    model.alloc(0, 11 * M)
    assert layout(model) == [(G, 12 * M, 1)]
    model.alloc(1, 11 * M - 512)
    assert layout(model)[1:] == [(2 * G, 11 * M - 512, 1), (2 * G + 11 * M - 512, M + 512, 0)]
    assert model.live == 22 * M - 512


def test_a_rest_of_512_bytes_is_split_off_a_small_block() -> None:
    model = make()
    model.alloc(0, 1024)
    model.alloc(1, 512)
    model.free(0)
    assert model.alloc(2, 512) == G
    assert model.alloc(3, 512) == G + 512


def test_the_smallest_block_that_fits_is_taken() -> None:
    model = make()
    for at, size in enumerate((4 * K, 512, 2 * K, 512, 3 * K, 512)):
        model.alloc(at, size)
    for at in (0, 2, 4):
        model.free(at)
    assert model.alloc(6, 2 * K + 1) == G + 4 * K + 512 + 2 * K + 512
    assert model.alloc(7, 1024) == G + 4 * K + 512
    assert model.alloc(8, 4 * K) == G


def test_of_equal_blocks_the_one_at_the_lowest_address_is_taken() -> None:
    model = make()
    for at in range(6):
        model.alloc(at, 1024)
    for at in (4, 0, 2):
        model.free(at)
    assert [model.alloc(at, 1024) for at in (6, 7, 8)] == [G, G + 2 * K, G + 4 * K]


def test_streams_have_their_own_blocks() -> None:
    model = make()
    model.alloc(0, 512, 0)
    model.free(0)
    assert model.alloc(1, 512, 3) == 2 * G
    assert model.alloc(2, 512, 0) == G


def test_free_neighbors_merge_but_not_segments() -> None:
    model = make()
    for at in range(4):
        model.alloc(at, 512 * K)
    assert model.alloc(4, 512 * K) == 2 * G
    model.free(0)
    model.free(2)
    assert layout(model)[:3] == [(G, 512 * K, 0), (G + 512 * K, 512 * K, 1), (G + M, 512 * K, 0)]
    model.free(1)
    assert layout(model)[:2] == [(G, 1536 * K, 0), (G + 1536 * K, 512 * K, 1)]
    model.free(3)
    model.free(4)
    assert layout(model) == [(G, 2 * M, 0), (2 * G, 2 * M, 0)]
    assert (model.reserved, model.live) == (4 * M, 0)


def test_segments_that_are_wholly_free_are_given_back() -> None:
    model = make()
    model.alloc(0, 512)
    model.alloc(1, 30 * M)
    model.alloc(2, 5 * M)
    model.free(1)
    model.empty_cache()
    assert layout(model) == [
        (G, 512, 1),
        (G + 512, 2 * M - 512, 0),
        (3 * G, 5 * M, 1),
        (3 * G + 5 * M, 15 * M, 0),
    ]
    assert model.reserved == 22 * M
    assert model.counters["device_free"] == 1


def test_cached_segments_are_ordered_large_first_then_by_stream_size_and_address() -> None:
    model = make()
    sizes = ((512, 0), (14 * M, 1), (30 * M, 0), (12 * M, 0), (12 * M, 0))
    for at, (size, stream) in enumerate(sizes):
        model.alloc(at, size, stream)
    for at in range(len(sizes)):
        model.free(at)
    assert [block.address // G for block in model.cached_segments()] == [4, 5, 3, 2, 1]


def test_a_full_device_gives_its_cache_back_and_tries_again() -> None:
    model = make(50 * M)
    model.alloc(0, 20 * M)
    model.alloc(1, 20 * M)
    model.free(0)
    assert model.alloc(2, 30 * M) == 3 * G
    assert (model.reserved, model.counters["retries"]) == (50 * M, 1)
    with pytest.raises(OutOfMemory, match="2097152 bytes need a segment of 20971520, but 52428800"):
        model.alloc(3, 2 * M)
    assert model.counters["retries"] == 2
    model.free(2)
    assert model.alloc(3, 2 * M) == 3 * G


def test_a_block_that_another_stream_uses_waits_for_that_stream() -> None:
    model = make()
    model.alloc(0, M)
    model.kernel(5, 1000)
    model.record_stream(0, 5)
    model.record_stream(0, 0)  # its own stream changes nothing
    model.free(0)
    assert model.live == 0
    assert layout(model) == [(G, M, 2), (G + M, M, 0)]
    assert model.alloc(1, M) == G + M
    model.advance(999)
    assert model.alloc(2, M) == 2 * G
    model.advance(1000)
    assert model.alloc(3, M) == G


def test_a_sync_ends_the_wait() -> None:
    model = make()
    model.alloc(0, 2 * M)
    model.kernel(5, 10**9)
    model.record_stream(0, 5)
    model.free(0)
    model.sync(4)
    assert model.alloc(1, 18 * M) == G + 2 * M
    model.sync(5)
    assert model.alloc(2, 2 * M) == G


def test_a_full_device_waits_for_other_streams_before_it_fails() -> None:
    model = make(20 * M)
    model.alloc(0, 20 * M)
    model.kernel(1, 10**9)
    model.record_stream(0, 1)
    model.free(0)
    assert model.alloc(1, 18 * M) == 2 * G
    assert (model.counters["syncs"], model.counters["device_free"]) == (1, 1)


def test_pending_blocks_do_not_merge() -> None:
    model = make()
    model.alloc(0, 512)
    model.alloc(1, 512)
    model.kernel(1, 50)
    model.record_stream(0, 1)
    model.free(0)
    model.free(1)
    assert layout(model) == [(G, 512, 2), (G + 512, 2 * M - 512, 0)]


def test_private_pools_keep_their_cache_until_they_are_released() -> None:
    model = make(22 * M)
    assert model.alloc(0, 2 * M, 0, 4) == G
    model.free(0)
    with pytest.raises(OutOfMemory):
        model.alloc(1, 2 * M)
    assert model.alloc(2, 3 * M, 0, 4) == G
    model.free(2)
    model.release_pool(4)
    assert model.alloc(3, 2 * M) == 2 * G


def test_a_split_limit_keeps_oversize_blocks_whole() -> None:
    model = make(max_split_size_mb=32)
    model.alloc(0, 40 * M)
    model.free(0)
    # Below the limit: never from an oversize block.
    assert model.alloc(1, 16 * M) == 2 * G
    # From the limit on: whole, if less than 20 MiB would be wasted.
    assert model.alloc(2, 32 * M) == G
    assert layout(model)[0] == (G, 40 * M, 1)
    model.free(2)
    model.alloc(3, 60 * M)
    model.free(3)
    assert model.alloc(4, 40 * M) == G
    assert model.alloc(5, 40 * M) == 4 * G  # 60 MiB is 20 MiB too much
    assert asked(model) == [40 * M, 16 * M, 60 * M, 40 * M]


def test_a_larger_waste_can_be_allowed() -> None:
    model = make(max_split_size_mb=32, max_non_split_rounding_mb=21)
    model.alloc(0, 60 * M)
    model.free(0)
    assert model.alloc(1, 40 * M) == G


def test_with_a_split_limit_one_large_cached_block_makes_room() -> None:
    model = make(100 * M, max_split_size_mb=32)
    model.alloc(0, 64 * M)
    model.alloc(1, 20 * M)
    model.free(0)
    model.free(1)
    # 16 MiB come from the 20 MiB; the next 30 MiB do not fit: the 64 MiB are given back.
    assert model.alloc(2, 16 * M) == 2 * G
    assert model.alloc(3, 30 * M) == 3 * G
    assert model.reserved == 50 * M
    assert model.counters["retries"] == 0


def test_with_a_split_limit_the_largest_cached_blocks_make_room() -> None:
    model = make(110 * M, max_split_size_mb=32)
    for at, size in enumerate((34, 36, 38)):
        model.alloc(at, size * M)
    for at in range(3):
        model.free(at)
    assert model.alloc(3, 70 * M) == 4 * G
    # 38 and 36 MiB are enough.
    assert layout(model) == [(G, 34 * M, 0), (4 * G, 70 * M, 1)]


def test_old_cached_segments_are_collected_above_the_threshold() -> None:
    model = make(100 * M, garbage_collection_threshold=0.5)
    model.alloc(0, 20 * M)
    model.alloc(1, 30 * M)
    model.free(0)
    model.alloc(2, 12 * M)
    model.free(2)
    # 50 MiB are not above the half; 12 MiB came out of the 20 MiB.
    assert asked(model) == [20 * M, 30 * M]
    model.free(1)
    model.alloc(3, 24 * M)
    model.free(3)
    model.alloc(4, 40 * M)  # 90 MiB after this, but 50 before: nothing is collected
    assert model.counters["device_free"] == 0
    model.free(4)
    model.alloc(5, 26 * M)  # out of the 30 MiB
    # Free: 20 MiB since search 3, 40 MiB since search 5. The search of this request is the 7th:
    # ages 4 and 2, average 3. 20 MiB are given back, the next average is 2, 40 MiB are, too.
    model.alloc(6, 50 * M)
    assert model.counters["device_free"] == 2
    assert [block.size for block in model.blocks()] == [26 * M, 4 * M, 50 * M]


def test_divisions_of_powers_of_two_make_larger_blocks() -> None:
    model = make(roundup_power2_divisions=4)
    assert model.alloc(0, 4097) == G
    assert model.alloc(1, 1) == G + 5120
    model.alloc(2, 900 * K)  # 512 KiB in steps of 128: 1 MiB - 128 KiB = 896, so 1 MiB
    assert [block.size for block in model.blocks()][2] == M


def test_without_an_address_provider_segments_do_not_overlap() -> None:
    model = TorchDefault()
    addresses = [model.alloc(at, size) for at, size in enumerate((M, 30 * M, 11 * M, 5 * M))]
    assert addresses == [1 << 40, (1 << 40) + 2 * M, (1 << 40) + 32 * M, (1 << 40) + 44 * M]


def test_ids_are_used_once_at_a_time() -> None:
    model = make()
    model.alloc(0, 1)
    with pytest.raises(Invalid, match="id 0 is allocated already"):
        model.alloc(0, 1)
    model.free(0)
    with pytest.raises(Invalid, match="id 0 is not allocated"):
        model.free(0)
    with pytest.raises(Invalid, match="id 0 is not allocated"):
        model.record_stream(0, 1)


def test_unknown_options_are_named() -> None:
    with pytest.raises(Invalid, match="'splitting' is no setting of torch's allocator"):
        TorchDefault(splitting=3)
