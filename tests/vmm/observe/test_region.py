# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Regions: numbers worked out by hand, with a recording and without."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.vmm.observe.made import BASE, alloc, block, events, free, mapped, state
from vmm import Allocator, Invalid
from vmm.observe import region_counts
from vmm.observe.api import record, region, top
from vmm.observe.regions import Region

KIB = 1 << 10
MIB = 1 << 20


@pytest.fixture
def one() -> Allocator:
    return Allocator(driver="null", device_bytes=1 << 30)


@contextmanager
def maybe_recorded(one: Allocator, recorded: bool) -> Iterator[None]:
    if not recorded:
        yield
        return
    with record(1 << 12, allocator=one):
        yield


@pytest.mark.parametrize("recorded", [False, True])
def test_counts(one: Allocator, recorded: bool) -> None:
    old, stays = one.alloc(4 * MIB), one.alloc(2 * MIB)
    with maybe_recorded(one, recorded):
        with region("step", allocator=one) as r:
            a = one.alloc(3 * MIB)
            b = one.alloc(600)
            one.free(old)
            c = one.alloc(MIB + 1)
            one.free(a)
        after = one.alloc(MIB)
    counts = r.counts
    assert (counts.allocs, counts.frees) == (3, 2)
    assert counts.alloc_bytes == 3 * MIB + 1024 + MIB + 512
    assert counts.freed_bytes == 7 * MIB
    assert counts.net == counts.live_after - counts.live_before == 1024 + 512 - 3 * MIB
    assert counts.live_before == 6 * MIB
    assert counts.peak == 9 * MIB + 1024
    assert counts.peak_exact
    assert (counts.steals, counts.waits, counts.syncs, counts.ooms, counts.lost) == (0,) * 5
    left = {(s.address, s.size, s.requested, s.tag) for s in r.survivors}
    assert left == {(b, 1024, 600, "step"), (c, MIB + 512, MIB + 1, "step")}
    assert {stays, after} & {s.address for s in r.survivors} == set()


def test_peak_without_a_recording_may_be_unknown(one: Allocator) -> None:
    one.free(one.alloc(100 * MIB))
    with region("low", allocator=one) as r:
        one.free(one.alloc(50 * MIB))
        one.alloc(MIB)
    assert not r.counts.peak_exact
    assert r.counts.peak == MIB
    assert "at least 1.00 MiB" in r.table()
    with record(100, allocator=one), region("low", allocator=one) as r:
        one.free(one.alloc(50 * MIB))
    assert (r.counts.peak_exact, r.counts.peak) == (True, 51 * MIB)


def test_nested_regions_name_allocations(one: Allocator) -> None:
    with region("forward", allocator=one) as outer:
        one.alloc(MIB)
        with region("attention", allocator=one) as inner:
            one.alloc(2 * MIB)
            one.alloc(512, tag="mine")
        one.alloc(4 * MIB)
    one.alloc(8 * MIB)
    assert [tuple(row) for row in top(allocator=one)] == [
        ("", 8 * MIB, 1),
        ("forward", 5 * MIB, 2),
        ("forward/attention", 2 * MIB, 1),
        ("mine", 512, 1),
    ]
    assert inner.path == "forward/attention"
    assert inner.counts.allocs == 2
    assert outer.counts.allocs == 4
    assert len(outer.survivors) == 4


def test_names_belong_to_threads(one: Allocator) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with region("other", allocator=one):
            inside.set()
            go_on.wait()
            one.alloc(2 * MIB)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with region("main", allocator=one) as r:
        one.alloc(MIB)
        go_on.set()
        thread.join()
    assert r.path == "main"
    assert {row.tag: row.bytes for row in top(allocator=one)} == {"other": 2 * MIB, "main": MIB}
    assert r.counts.allocs == 2


def test_own_thread_only(one: Allocator) -> None:
    def other() -> None:
        addresses.append(one.alloc(2 * MIB))

    addresses: list[int] = []
    with (
        record(1000, allocator=one),
        region("main", threads="own", allocator=one) as own,
        region("x", allocator=one) as every,
    ):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        kept = one.alloc(MIB)
        one.free(addresses[0])
    assert (own.counts.allocs, own.counts.frees, own.counts.alloc_bytes) == (1, 1, MIB)
    assert [s.address for s in own.survivors] == [kept]
    assert (every.counts.allocs, every.counts.frees) == (2, 1)
    with pytest.raises(Invalid, match="threads: 'own' needs a recording"):
        region("main", threads="own", allocator=one).__enter__()
    # The refused region is not in the way of the next.
    with region("next", allocator=one) as r:
        pass
    assert r.path == "next"


def test_survivors_tell_where_they_were_born(one: Allocator) -> None:
    with record(1000, stacks="python", allocator=one), region("leak", allocator=one) as r:
        one.alloc(3 * MIB)
    (survivor,) = r.survivors
    file, line, function = survivor.stack[0]
    assert (file, function) == (__file__, "test_survivors_tell_where_they_were_born")
    text = r.table()
    assert text.startswith("Region leak\n")
    assert f":{line}" in text
    assert "3.00 MiB" in text


def test_decorator(one: Allocator) -> None:
    @region("call", allocator=one)
    def call(size: int) -> int:
        return one.alloc(size)

    decorated = region("again", allocator=one)

    @decorated
    def again(depth: int) -> None:
        one.alloc(512)
        if depth:
            again(depth - 1)

    call(512)
    again(2)
    assert decorated.last is not None
    assert decorated.last.counts.allocs == 3
    assert {row.tag for row in top(allocator=one)} == {
        "call",
        "again",
        "again/again",
        "again/again/again",
    }


def test_an_error_inside_leaves_no_name(one: Allocator) -> None:
    with pytest.raises(KeyError), region("bad", allocator=one):
        raise KeyError
    one.alloc(512)
    assert top(allocator=one)[0].tag == ""


def test_notes_in_the_recording(one: Allocator) -> None:
    with (
        record(100, allocator=one) as recorder,
        region("outer", allocator=one),
        region("inner", allocator=one),
    ):
        pass
    assert recorder.recording is not None
    trace = recorder.recording.trace
    assert [trace.header["tags"][tag] for tag in trace.tag] == [
        "> outer",
        "> outer/inner",
        "< outer/inner",
        "< outer",
    ]


def test_region_that_outlives_its_recording(one: Allocator) -> None:
    recorder = record(100, allocator=one).start()
    with region("r", allocator=one) as r:
        one.alloc(512)
        recorder.stop()
        one.alloc(512)
    assert r.counts.allocs == 1


def test_lost_events_are_told(one: Allocator) -> None:
    with record(10, allocator=one), region("r", allocator=one) as r:
        for _ in range(10):
            one.free(one.alloc(512))
    assert r.counts.lost > 0
    assert not r.counts.peak_exact


def test_refusals(one: Allocator) -> None:
    with pytest.raises(Invalid, match="name: must be a text that is not empty, but is ''"):
        region("", allocator=one)
    with pytest.raises(Invalid, match="threads: must be one of all, own, but is 'mine'"):
        region("r", threads="mine", allocator=one)
    with pytest.raises(Invalid, match="device: must be None, a number from 0"):
        region("r", device=-1, allocator=one)
    r = region("r", allocator=one)
    with pytest.raises(Invalid, match="has not ended"):
        r.table()
    with r, pytest.raises(Invalid, match="open already"):
        r.__enter__()
    with pytest.raises(Invalid, match="is not open"):
        Region("x", allocator=one).__exit__(None, None, None)


def test_counts_of_events_made_by_hand() -> None:
    made = events(
        mapped(BASE, 0, 2),
        mapped(BASE, 0, 3),
        mapped(BASE, 0, 1),
        alloc(BASE, 1024, 900, thread=1),
        {"action": 7},
        {"action": 8},
        {"action": 6, "size": 5},
        free(BASE, 1024, thread=2),
        alloc(BASE, 512, 500, thread=2),
        alloc(BASE + 512, 512, 2, thread=1, device=1),
    )
    counts = region_counts.from_events(made, device=0, live_before=100)
    assert counts == region_counts.Counts(
        allocs=2,
        frees=1,
        alloc_bytes=1536,
        freed_bytes=1024,
        live_before=100,
        live_after=612,
        peak=1124,
        peak_exact=True,
        steals=2,
        waits=1,
        syncs=1,
        ooms=1,
    )
    own = region_counts.from_events(made, device=0, live_before=100, thread=1)
    assert (own.allocs, own.frees, own.net, own.peak) == (1, 0, 1024, 1124)


def test_survivors_of_lists_made_by_hand() -> None:
    before = state([block(BASE, 512), block(BASE + 512, 512), block(BASE + 1024, 512, "free")], [])
    after = state(
        [
            block(BASE, 512),
            block(BASE + 512, 512, requested=300),
            block(BASE + 1024, 512, tag="new"),
            block(BASE + 2048, 512, "free"),
        ],
        [],
    )
    found = region_counts.survivors_of_states(before, after, [()])
    assert [(s.address - BASE, s.requested, s.tag) for s in found] == [
        (512, 300, ""),
        (1024, 512, "new"),
    ]
