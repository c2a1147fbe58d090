# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings made up by hand from the allocator's rules, and what is said of them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.vmm.traces.recorder import Recorder
from vmm.errors import Invalid, Unsupported
from vmm.sim.exact import ExactResult, check_exact
from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.torch_settings import TorchSettings
from vmm.sim.readers import read_snapshot
from vmm.sim.readers.torch_lite import from_lite

K, M, G = 1 << 10, 1 << 20, 1 << 30
LIVE, PENDING, FREE = "active_allocated", "active_awaiting_free", "inactive"


def segment(
    address: int, *blocks: tuple[int, int, str], stream: int = 0, pool: int = 0
) -> dict[str, Any]:
    """A segment of blocks (size, requested, state)."""
    rows, place = [], address
    for size, requested, state in blocks:
        rows.append([place, size, requested, state])
        place += size
    size = place - address
    kind = "small" if size == 2 * M else "large"
    return {
        "addr": address,
        "size": size,
        "type": kind,
        "stream": stream,
        "pool": (0, pool),
        "blocks": rows,
    }


def check(segments: list[dict[str, Any]], events: list[list[Any]], **settings: Any) -> ExactResult:
    data = {"segments_at_end": segments, "events": [[*e, *(0,) * (4 - len(e))] for e in events]}
    return check_exact(from_lite(data | {"allocator_settings": settings}))


def free(address: int, size: int) -> list[list[Any]]:
    return [["free_requested", address, size], ["free_completed", address, size]]


def test_a_run_from_nothing() -> None:
    segments = [
        segment(G, (512, 100, LIVE), (1024, 600, LIVE), (2 * M - 1536, 0, FREE)),
        segment(2 * G, (12 * M, 11 * M, FREE)),
    ]
    events = [
        ["segment_alloc", G, 2 * M],
        ["alloc", G, 100],
        ["alloc", G + 512, 600],
        ["segment_alloc", 2 * G, 12 * M],
        ["alloc", 2 * G, 11 * M],
        *free(2 * G, 11 * M),
    ]
    result = check(segments, events)
    assert result.exact
    assert result.same_layout
    assert (result.allocs, result.segment_allocs, result.inferred_ends) == (3, 2, 0)
    assert (result.reserved, result.reserved_recorded) == (14 * M, 14 * M)
    assert str(result).startswith("EXACT: 7 events, 3 allocations and 2 new segments as predicted")


def test_another_address_is_a_mismatch_at_its_event() -> None:
    segments = [
        segment(G, (512, 100, LIVE), (512, 0, FREE), (1024, 600, LIVE), (2 * M - 2048, 0, FREE))
    ]
    events = [["segment_alloc", G, 2 * M], ["alloc", G, 100], ["alloc", G + 1024, 600]]
    result = check(segments, events)
    assert not result.exact
    assert (result.mismatches, result.first_mismatch) == (1, 2)
    assert result.message == (
        f"600 bytes were placed at {G + 1024:#x}, but the model takes the block of {2 * M - 512}"
        f" bytes at {G + 512:#x}"
    )
    assert result.reserved == result.reserved_recorded == 2 * M


def test_a_segment_of_another_size_is_a_mismatch_and_changes_the_bytes() -> None:
    segments = [segment(G, (12 * M, 12 * M, LIVE), (4 * M, 0, FREE))]
    events = [["segment_alloc", G, 16 * M], ["alloc", G, 12 * M]]
    result = check(segments, events)
    assert (result.exact, result.first_mismatch) == (False, 1)
    assert "the model takes a new segment of 12582912 bytes" in result.message
    assert (result.reserved, result.reserved_recorded) == (12 * M, 16 * M)


def test_a_segment_that_was_not_needed_is_a_mismatch() -> None:
    segments = [
        segment(G, (12 * M, 0, FREE)),
        segment(2 * G, (12 * M, 12 * M, LIVE)),
    ]
    result = check(segments, [["segment_alloc", 2 * G, 12 * M], ["alloc", 2 * G, 12 * M]])
    assert (result.exact, result.first_mismatch) == (False, 1)
    assert result.reserved == 12 * M


def test_a_segment_that_is_missing_is_a_mismatch() -> None:
    # Two blocks of 10 MiB are free, and a request of 20 MiB is said to have got both.
    segments = [segment(G, (10 * M, 10 * M, LIVE), (10 * M, 10 * M, LIVE), (20 * M, 20 * M, FREE))]
    events = [*free(G + 20 * M, 20 * M), ["alloc", G, 10 * M], ["alloc", G + 10 * M, 10 * M]]
    result = check(segments, events)
    assert result.exact  # before the frees 40 MiB were split three ways
    result = check(
        segments, [["alloc", G, 10 * M], ["alloc", G + 10 * M, 10 * M], *free(G + 20 * M, 25 * M)]
    )
    assert not result.exact
    assert "do not fit" in result.message


def test_a_short_gap_behind_a_large_block_is_its_own() -> None:
    # 11 MiB at the start with 1 MiB behind it: a block of 12 MiB, which a request of 12 MiB gets.
    events = [*free(G, 11 * M), ["alloc", G, 12 * M]]
    assert check([segment(G, (12 * M, 12 * M, LIVE))], events).exact


def test_a_long_gap_may_be_partly_the_blocks_own() -> None:
    # 5 MiB + 512 KiB at G were left over for a request of 5 MiB, and 25 MiB - 512 KiB are free
    # behind it. A request of 25 MiB would fit if the block were as short as its request.
    segments = [segment(G, (30 * M, 0, FREE)), segment(2 * G, (26 * M, 25 * M, LIVE))]
    events = [["segment_alloc", 2 * G, 26 * M], ["alloc", 2 * G, 25 * M], *free(G, 5 * M)]
    result = check(segments, events)
    assert result.exact
    assert result.inferred_ends == 1
    assert str(result).endswith("1 block ends inferred")
    # But it cannot be more than 1 MiB too long: 25 MiB - 1 MiB must have been free.
    segments[1] = segment(2 * G, (24 * M, 23 * M + 512, LIVE))
    events[:2] = [["segment_alloc", 2 * G, 24 * M], ["alloc", 2 * G, 23 * M + 512]]
    result = check(segments, events)
    assert (result.exact, result.first_mismatch, result.inferred_ends) == (False, 1, 0)


def test_what_was_placed_right_behind_a_block_shows_where_it_ends() -> None:
    # The block of the first 5 MiB is 300 KiB longer: that is where 3 MiB were placed meanwhile.
    place = G + 5 * M + 300 * K
    segments = [segment(G, (20 * M, 0, FREE))]
    events = [["alloc", place, 3 * M], *free(place, 3 * M), *free(G, 5 * M)]
    result = check(segments, events)
    assert (result.exact, result.inferred_ends) == (True, 0)


def test_frees_that_wait_before_the_first_and_after_the_last_event() -> None:
    rest = 2 * M - 3 * 512
    segments = [segment(G, (512, 9, LIVE), (512, 9, PENDING), (512, 9, LIVE), (rest, 0, FREE))]
    events = [
        ["alloc", G + 1024, 9],  # G waits for a stream: not there
        ["free_completed", G, 9],
        ["free_requested", G + 512, 9],
        ["alloc", G, 9],
    ]
    result = check(segments, events)
    assert (result.exact, result.same_layout) == (True, True)


def test_streams_and_pools_have_their_own_blocks() -> None:
    hole = (2 * M - 512, 0, FREE)
    segments = [
        segment(G, (512, 1, LIVE), hole),
        segment(2 * G, (512, 1, LIVE), hole, stream=77),
        segment(3 * G, (512, 1, LIVE), hole, pool=5),
    ]
    events = [
        ["alloc", G, 1, 0],
        ["segment_alloc", 2 * G, 2 * M, 77],
        ["alloc", 2 * G, 1, 77],
        ["segment_alloc", 3 * G, 2 * M, 0],
        ["alloc", 3 * G, 1, 0],
    ]
    assert check(segments, events).exact
    # In the common pool the last request would not have needed a segment.
    del segments[2]["pool"]
    assert check(segments, events).first_mismatch == 4


def test_a_cache_that_was_given_back() -> None:
    segments = [segment(G, (512, 1, LIVE), (2 * M - 512, 0, FREE))]
    events = [
        ["alloc", G, 1],
        ["segment_free", 2 * G, 30 * M],
        ["segment_free", 3 * G, 2 * M],
    ]
    result = check(segments, events)
    assert (result.exact, result.releases) == (True, {"whole": 1, "part": 0})
    events.insert(2, ["snapshot", 0, 0])
    assert check(segments, events).releases == {"whole": 1, "part": 1}


def test_a_request_does_not_look_again_after_the_device_was_full() -> None:
    # 6 MiB at G + 4 MiB wait for a stream. The device is full, the wait frees them, 40 MiB of
    # another stream are given back: the 5 MiB still get a new segment.
    events = [
        ["free_requested", G + 4 * M, 6 * M],
        ["free_completed", G + 4 * M, 6 * M],
        ["segment_free", 3 * G, 40 * M, 8],
        ["segment_alloc", 2 * G, 20 * M],
        ["alloc", 2 * G, 5 * M],
    ]
    segments = [
        segment(G, (4 * M, 4 * M, LIVE), (6 * M, 0, FREE), (10 * M, 10 * M, LIVE)),
        segment(2 * G, (5 * M, 5 * M, LIVE), (15 * M, 0, FREE)),
    ]
    # Freed by its own stream, it would have been found.
    assert not check(segments, events).exact
    events.insert(1, ["snapshot", 0, 0])
    assert check(segments, events).exact


def test_the_segment_of_the_first_request_may_be_made_before_the_first_event() -> None:
    # With the split limit a cached segment of 20 MiB would not be for 5 MiB.
    segments = [segment(G, (5 * M, 5 * M, LIVE), (15 * M, 0, FREE))]
    assert check(segments, [["alloc", G, 5 * M]], max_split_size=20 * M).exact
    assert not check(
        segments, [["snapshot", 0, 0], ["alloc", G, 5 * M]], max_split_size=20 * M
    ).exact


def test_settings_of_the_snapshot_are_used() -> None:
    segments = [
        segment(G, (40 * M, 0, FREE)),
        segment(2 * G, (16 * M, 16 * M, LIVE)),
        segment(3 * G, (5120, 4097, LIVE), (2 * M - 5120, 0, FREE)),
    ]
    events = [
        ["segment_alloc", 2 * G, 16 * M],
        ["alloc", 2 * G, 16 * M],
        ["alloc", 3 * G, 4097],
    ]
    assert check(segments, events, max_split_size=32 * M, roundup_power2_divisions={1: 4}).exact
    found = check(segments, events)
    assert not found.exact
    assert str(found).endswith(
        "; it would be exact with the settings roundup_power2_divisions:4,max_split_size_mb:40"
    )
    assert not check(segments, events, roundup_power2_divisions={1: 4}).exact
    assert not check(segments, events, max_split_size=32 * M).same_layout


def test_expandable_segments_are_refused() -> None:
    grown = segment(G, (20 * M, 0, FREE)) | {"is_expandable": True}
    with pytest.raises(Unsupported, match="taken with expandable segments"):
        check([grown], [])
    with pytest.raises(Unsupported, match="taken with expandable segments"):
        check([segment(G, (20 * M, 0, FREE))], [["segment_map", G, 2 * M]])


# Events that cannot have led to one free segment of 20 MiB at G, and why.
IMPOSSIBLE = {
    "allocated": (
        [["alloc", G, 5 * M]],
        "event 0 .* nothing is allocated at 0x40000000 afterwards",
    ),
    "outside": ([["alloc", 2 * G, 5 * M]], "event 0 .* no segment is at 0x80000000"),
    "freed twice": (
        [*free(G, 5 * M), *free(G, 5 * M)],
        "event 1 .* still allocated after its free",
    ),
    "freed at once": ([["free_requested", G, 5 * M]], "event 0 .* awaits no free afterwards"),
    "released": ([["segment_free", G, 20 * M]], "event 0 .* a segment is at 0x40000000 after"),
    "grown": ([["segment_alloc", G, 10 * M]], "event 0 .* no empty segment of 10485760 bytes"),
    "too large": ([*free(G, 30 * M)], "do not fit"),
    "overlap": ([*free(G, 5 * M), *free(G + 4 * M, 5 * M)], "do not fit"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_events_that_do_not_lead_to_the_segments(case: str) -> None:
    events, text = IMPOSSIBLE[case]
    result = check([segment(G, (20 * M, 0, FREE))], events)
    assert not result.exact
    assert str(result).startswith("MISMATCH at event")
    with pytest.raises(ValueError, match=text):
        raise ValueError(result.message)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(Invalid, match="max_split_size_mb is 1, but at least 20"):
        check([], [], max_split_size=M)


CONFIGURATIONS = (
    "",
    "max_split_size_mb:25",
    "roundup_power2_divisions:[1:2,8:8,>:4]",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:64,max_non_split_rounding_mb:30,large_segment_size_mb:30",
)


def record(seed: int, settings: str) -> Recorder:
    """A random run on a device of 500 MiB with segments at random places."""
    chance = random.Random(seed)
    taken: list[tuple[int, int]] = []

    def address(size: int, stream: int, pool: int) -> int:
        while True:
            place = chance.randrange(1 << 14) * 2 * M
            if all(place + size <= begin or end <= place for begin, end in taken):
                taken.append((place, place + size))
                return place

    model = Recorder(500 * M, settings=TorchSettings.from_text(settings), segment_address=address)
    live: list[int] = []
    for number in range(250):
        model.advance(number * 100)
        choice = chance.random()
        if choice < 0.5 or not live:
            size = chance.choice((chance.randrange(1, 3000), chance.randrange(1, 30 * M), 11 * M))
            try:
                model.alloc(number, size, chance.choice((0, 0, 9)), chance.choice((0, 0, 0, 3)))
                live.append(number)
            except OutOfMemory:
                pass
        elif choice < 0.9:
            model.free(live.pop(chance.randrange(len(live))))
        elif choice < 0.98:
            model.record_stream(chance.choice(live), 9)
            model.kernel(9, chance.randrange(3000))
        else:
            model.empty_cache()
    return model


@pytest.mark.parametrize("settings", CONFIGURATIONS)
def test_a_recording_is_exact_wherever_its_beginning_was_cut_off(settings: str) -> None:
    from vmm.sim.readers.torch_snapshot import from_torch

    for seed in range(12):
        model = record(seed, settings)
        keep = (None, 0, len(model.events) // 2, 37 * seed)[seed % 4]
        snapshot = from_torch(model.snapshot(keep, PYTORCH_CUDA_ALLOC_CONF=settings))
        result = check_exact(snapshot)
        assert str(result).startswith("EXACT"), (seed, result)
        assert result.same_layout


def test_public_snapshots_of_real_devices() -> None:
    folder = os.environ.get("VMM_TRACES")
    if not folder:
        pytest.skip("VMM_TRACES names no folder of recorded snapshots")
    paths = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
    assert paths
    for path in paths:
        result = check_exact(read_snapshot(path))
        assert result.exact, (path.name, str(result))
        assert result.same_layout, path.name
