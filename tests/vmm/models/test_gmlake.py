# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each rule of GMLake with addresses and ranges worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.models.checks import run_randomly
from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.gmlake import Gmlake

M, G = 1 << 20, 1 << 30
BASE = 1 << 40
MS = 1_000_000


def counted(model: Gmlake) -> dict[str, int]:
    return {name: value for name, value in model.counters.items() if value}


def place(model: Gmlake, id: int, size: int, stream: int = 0, pool: int = 0) -> int:
    """The address in MiB behind the first one, of a request in MiB."""
    return (model.alloc(id, size * M, stream, pool) - BASE) // M


def ranges(model: Gmlake, id: int) -> list[tuple[int, int]]:
    """The memory of an allocation in MiB."""
    return [((address - BASE) // M, size // M) for address, size in model.ranges_of(id)]


def two_free_segments(capacity: int | None = None, **options: Any) -> Gmlake:
    """20 MiB are free at 0 and 20 more at 20 MiB."""
    model = Gmlake(capacity, **{"frag_limit": 2 * M} | options)
    for id in (100, 101):
        place(model, id, 20)
    for id in (100, 101):
        model.free(id)
    return model


def test_requests_up_to_1_mib_take_torchs_small_segments() -> None:
    model = Gmlake()
    assert [model.alloc(id, size) - BASE for id, size in enumerate((1, M, M))] == [0, 512, 2 * M]
    assert (model.live, model.reserved) == (512 + 2 * M, 4 * M)
    assert counted(model) == {"device_alloc": 2}


def test_larger_ones_are_chunks_of_2_mib_in_segments_of_torchs_sizes() -> None:
    model = Gmlake()
    model.alloc(0, M + 1)
    assert (model.live, model.reserved) == (2 * M, 20 * M)
    assert counted(model) == {"device_alloc": 10, "maps": 10}
    assert place(model, 1, 18) == 2
    assert place(model, 2, 31) == 20
    assert model.reserved == 52 * M


def test_s1_takes_a_primitive_block_of_exactly_the_size() -> None:
    model = Gmlake()
    for id, size in enumerate((12, 14, 16)):
        place(model, id, size)
    for id in range(3):
        model.free(id)
    assert place(model, 3, 14) == 12


def test_s2_splits_the_smallest_larger_primitive_block() -> None:
    model = two_free_segments()
    assert place(model, 0, 8) == 0
    assert place(model, 1, 10) == 8
    assert ranges(model, 1) == [(8, 10)]


def test_s3_stitches_the_largest_blocks_and_splits_the_last() -> None:
    model = two_free_segments()
    assert place(model, 0, 30) == 40  # new addresses
    assert ranges(model, 0) == [(20, 20), (0, 10)]
    assert model.reserved == 40 * M
    assert counted(model) == {"device_alloc": 20, "maps": 20 + 15}
    assert place(model, 1, 10) == 10  # what the split left


def test_s1_takes_a_stitched_block_again_without_mapping() -> None:
    model = two_free_segments()
    first = place(model, 0, 30)
    model.free(0)
    assert place(model, 1, 30) == first
    assert ranges(model, 1) == [(20, 20), (0, 10)]
    assert model.counters["maps"] == 35
    assert model.stitched == (1, 30 * M)


def test_s2_uses_the_front_of_a_larger_stitched_block_up_to_the_reuse_limit() -> None:
    for limit, address, maps in ((10, 40, 35), (1, 70, 35 + 12)):
        model = two_free_segments(reuse_limit=limit)
        place(model, 0, 30)
        model.free(0)
        # No primitive block has 24 MiB.
        assert place(model, 1, 24) == address
        assert ranges(model, 1) == [(20, 20), (0, 4)]
        assert model.counters["maps"] == maps
        # What the front does not use is free.
        assert place(model, 2, 16) == 4


def test_a_stitched_block_is_free_only_when_all_its_parts_are() -> None:
    model = two_free_segments()
    place(model, 0, 30)
    model.free(0)
    assert place(model, 1, 20) == 0  # a part of the stitched block, by its own address
    # S4: 20 MiB are free, the driver gives the 10 that lack.
    assert place(model, 2, 30) == 80
    assert ranges(model, 2) == [(20, 20), (70, 10)]
    assert model.reserved == 50 * M


def test_s4_asks_for_what_lacks_or_for_the_whole() -> None:
    model = two_free_segments()
    assert place(model, 0, 60) == 60
    assert ranges(model, 0) == [(40, 20), (20, 20), (0, 20)]
    assert model.reserved == 60 * M
    model = two_free_segments(whole_growth=1)
    assert ranges(model, place(model, 0, 60) - 40) == [(40, 60)]
    assert model.reserved == 100 * M


def test_below_the_limit_nothing_is_stitched() -> None:
    for limit, reserved in ((30 * M, 40), (30 * M + 1, 70)):
        model = two_free_segments(frag_limit=limit)
        place(model, 0, 30)
        assert model.reserved == reserved * M


def test_the_limit_is_32_mib_by_default() -> None:
    for size, reserved in ((30, 40 + 30), (32, 40)):
        model = Gmlake()
        place(model, 0, 20)
        place(model, 1, 20)
        model.free(0)
        model.free(1)
        place(model, 2, size)
        assert model.reserved == reserved * M


def test_level_1_stitches_when_the_driver_has_no_more() -> None:
    for capacity, reserved, retries in ((70, 70, 0), (69, 40, 0)):
        model = two_free_segments(capacity * M, defrag_level=1)
        place(model, 0, 30)
        assert (model.reserved, model.counters["retries"]) == (reserved * M, retries)


def test_stitching_comes_before_the_flush() -> None:
    model = two_free_segments(50 * M)
    place(model, 0, 50)
    assert model.reserved == 50 * M
    assert model.counters["retries"] == 0


def test_without_memory_idle_segments_go_back_with_the_stitched_blocks_on_them() -> None:
    model = two_free_segments(40 * M)
    place(model, 0, 30)
    model.free(0)
    place(model, 1, 40, stream=1)
    assert model.reserved == 40 * M
    assert model.stitched == (0, 0)
    assert counted(model) == {
        "device_alloc": 40,
        "maps": 55,
        "device_free": 20,
        "unmaps": 35,
        "retries": 1,
        "syncs": 1,
    }


def test_a_stitched_block_in_use_that_lost_a_part_goes_when_it_is_freed() -> None:
    model = two_free_segments(40 * M, merge=1)
    place(model, 0, 40)
    model.free(0)
    place(model, 1, 22)  # the front of the stitched block: 18 MiB of the first segment are free
    assert ranges(model, 1) == [(20, 20), (0, 2)]
    model.free(1)
    place(model, 2, 20, stream=1)  # both segments went back
    assert model.stitched == (0, 0)
    assert model.reserved == 20 * M


def test_split_parts_of_a_segment_join_again_unless_told_otherwise() -> None:
    for merge, address in ((1, 0), (0, 20)):
        model = Gmlake(merge=merge)
        for id, size in enumerate((8, 12)):
            place(model, id, size)
        for id in range(2):
            model.free(id)
        assert place(model, 2, 20) == address


def test_beyond_the_limit_the_least_recently_used_stitched_block_goes() -> None:
    model = Gmlake(auto_gc=1, frag_limit=2 * M, reuse_limit=1, lag_ns=0)
    for id in range(4):
        place(model, id, 256)
    for id in range(4):
        model.free(id)
    first = place(model, 4, 512)
    place(model, 5, 384)
    model.free(4)
    model.free(5)
    assert place(model, 6, 512) == first
    model.free(6)
    assert model.stitched == (2, 896 * M)
    place(model, 7, 500)  # 1396 MiB would be too much without the 384
    assert model.stitched == (2, 1012 * M)
    assert model.counters["unmaps"] == 192
    model.free(7)
    assert place(model, 8, 512) == first


def test_a_stitched_block_on_which_work_is_not_done_stays_beyond_the_limit() -> None:
    for waited, kept in ((5 * MS - 1, 2), (5 * MS, 1)):
        model = two_free_segments(auto_gc=0)
        place(model, 0, 30)
        model.free(0)
        model.advance(waited)
        place(model, 1, 40)
        assert model.stitched[0] == kept


def test_each_stream_stitches_its_own_blocks() -> None:
    model = two_free_segments()
    assert place(model, 0, 30, stream=1) == 40
    assert ranges(model, 0) == [(40, 30)]
    assert model.reserved == 70 * M


def test_what_a_recorded_stream_holds_is_free_once_that_stream_is_past() -> None:
    model = Gmlake()
    place(model, 0, 20)
    model.record_stream(0, 1)
    model.kernel(1, 2 * MS)
    model.free(0)
    model.advance(7 * MS - 1)
    assert place(model, 1, 20) == 20
    model.advance(7 * MS)
    assert place(model, 2, 20) == 0


def test_private_pools_keep_their_memory_until_they_are_released() -> None:
    model = Gmlake(20 * M)
    place(model, 0, 20, pool=3)
    model.free(0)
    with pytest.raises(OutOfMemory, match="20971520 bytes do not fit: 20971520 of 20971520"):
        place(model, 1, 20)
    model.release_pool(3)
    place(model, 1, 20)
    assert model.reserved == 20 * M


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(Invalid, match="gmlake has no option 'fragLimit'; known are lag_ns, frag_l"):
        Gmlake(fragLimit=3)


def covered(model: Any, id: int, size: int) -> list[tuple[int, int]]:
    parts = model.ranges_of(id)
    assert sum(length for _, length in parts) >= size
    return list(parts)


@given(
    st.integers(0, 1 << 32),
    st.sampled_from([None, 100 * M, 333 * M]),
    st.fixed_dictionaries(
        {
            "frag_limit": st.sampled_from([2 * M, 30 * M, 512 * M]),
            "reuse_limit": st.sampled_from([1, 2, 10]),
            "defrag_level": st.integers(0, 1),
            "auto_gc": st.integers(0, 1),
            "merge": st.integers(0, 1),
            "whole_growth": st.integers(0, 1),
        }
    ),
)
@settings(max_examples=60, deadline=None)
def test_random_requests_keep_the_rules(
    seed: int, capacity: int | None, options: dict[str, int]
) -> None:
    model = Gmlake(capacity, **options)
    run_randomly(model, seed, 300, ranges=covered)
    primitives = model._primitives
    small = sum(block.size for block in model._small.blocks())
    assert small + sum(size for _, size in primitives.segments.values()) == model.reserved
    for address, (_, size) in primitives.segments.items():
        spans = list(primitives.spans(address))
        assert [span.address for span in spans] == [
            address + sum(span.size for span in spans[:number]) for number in range(len(spans))
        ]
        assert sum(span.size for span in spans) == size
    assert sorted(primitives._spans) == primitives._starts
