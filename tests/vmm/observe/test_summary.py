# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Measures, lists and the summary of states made by hand and of small runs."""

from dataclasses import astuple

import pytest

from tests.vmm.observe.made import BASE, LARGE, PAGE, block, slot, state
from vmm import Allocator, Invalid
from vmm.observe import api
from vmm.observe.listing import page_entries, top_tags
from vmm.observe.measures import Fragmentation, covered_bytes, free_runs, measure
from vmm.observe.size_ranges import RANGES, histogram
from vmm.observe.state import State
from vmm.observe.summary_tables import summary_text
from vmm.observe.text import bytes_text

MIB = 1 << 20

# Arena 1, four pages: |A---|--AA|AAAA|----| with A 0.5 MiB, then 1 MiB + 2 MiB in one, then free.
BLOCKS = [
    block(LARGE, MIB // 2, requested=400_000, tag="a"),
    block(LARGE + MIB // 2, 5 * MIB // 2, "free"),
    block(LARGE + 3 * MIB, 3 * MIB, tag="b"),
    block(LARGE + 6 * MIB, 2 * MIB, "free"),
    block(LARGE + 8 * MIB, 4 * MIB, "unmapped"),
]
SLOTS = [slot(LARGE + n * PAGE, 10 + n) for n in range(4)] + [
    slot(LARGE + 4 * PAGE, 3, stale=True),
    slot(LARGE + 5 * PAGE, -1),
]
STATE = state(
    BLOCKS,
    SLOTS,
    **{
        "allocated_bytes.all.current": 7 * MIB // 2,
        "allocated_bytes.all.peak": 7 * MIB,
        "requested_bytes.all.current": 400_000 + 3 * MIB,
        "reserved_bytes.all.current": 10 * MIB,
        "reserved_bytes.all.peak": 14 * MIB,
        "stealable_bytes": 2 * MIB,
        "pool_free_bytes": 2 * MIB,
        "pages.created": 5,
        "pages.mapped": 4,
        "pages.free": 1,
        "pages.pinned_ipc": 2,
        "num_ooms": 3,
    },
)


def test_measures_by_hand() -> None:
    measures = measure(STATE)
    expected = Fragmentation(
        rounding=1 - (400_000 + 3 * MIB) / (3.5 * MIB),
        pinned_down=1 - 3.5 / 6,
        scattered=1 - 4 / 6.5,  # two free pages and one in the pool make a run of 4 MiB
        unmoved=1 - 2.5 / 6.5,
        held=1 - 3.5 / 10,
        peak=1 - 7 / 14,
        paddle_rate=(10 - 7) / 10,
        mass=1 - 2.5 / 4.5,
        hole=2 / 4,
        composite=(1 - 2.5 / 4.5) + (2.5 / 4.5) * 0.5,
    )
    assert astuple(measures) == pytest.approx(astuple(expected))


def test_measures_of_nothing_are_zero() -> None:
    assert set(astuple(measure(State()))) == {0.0}
    assert covered_bytes(State()) == 0


def test_covered_pages_count_once() -> None:
    """Three blocks on two pages, one that sleeps, one that is pending."""
    blocks = [
        block(LARGE, 512),
        block(LARGE + 512, PAGE),
        block(LARGE + PAGE + 512, 512),
        block(LARGE + 4 * PAGE, 512, asleep=True),
        block(LARGE + 6 * PAGE, 512, "pending"),
    ]
    assert covered_bytes(state(blocks, [])) == 3 * PAGE


def test_runs_join_neighbors_of_one_arena() -> None:
    last = LARGE - 512
    blocks = [
        block(BASE, 512, "free"),
        block(BASE + 512, 1024, "free"),
        block(BASE + 1536, 512),
        block(last, 512, "free"),
        block(LARGE, 2048, "free"),
    ]
    assert list(free_runs(state(blocks, []))) == [(BASE, 1536), (last, 512), (LARGE, 2048)]


def test_ranges_begin_where_the_last_ends() -> None:
    sizes = [1, MIB - 1, MIB, 10 * MIB - 1, 10 * MIB, (1 << 30) - 1, 1 << 30, 3 << 30, 900 << 30]
    counts = [count for count, _ in histogram(sizes)]
    assert len(counts) == len(RANGES) == 12
    assert counts == [2, 2, 1, 0, 0, 0, 0, 0, 1, 1, 0, 2]
    assert histogram(sizes)[1] == (2, 11 * MIB - 1)
    assert histogram([]) == [(0, 0)] * 12


def test_page_entries() -> None:
    entries = page_entries(STATE)
    assert [(e.state, e.page, e.live) for e in entries] == [
        ("mapped", 10, MIB // 2),
        ("mapped", 11, MIB),
        ("mapped", 12, 2 * MIB),
        ("mapped", 13, 0),
        ("stale", 3, 0),
        ("empty", -1, 0),
    ]


def test_top_tags() -> None:
    blocks = [
        block(BASE, 512, tag="x"),
        block(BASE + 512, 512, tag="y"),
        block(BASE + 1024, 1024, tag="x"),
        block(BASE + 2048, 512),
        block(BASE + 4096, 4096, "free"),
    ]
    made = state(blocks, [])
    rows = [tuple(row) for row in top_tags(made, 9)]
    assert rows == [("x", 1536, 2), ("", 512, 1), ("y", 512, 1)]
    assert len(top_tags(made, 1)) == 1


def cells(text: str, first: str) -> list[list[str]]:
    """The cells of the rows that begin with a word."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row[1:] for row in rows if row[0] == first]


def test_summary() -> None:
    text = summary_text(STATE)
    assert cells(text, "allocated") == [["3.50 MiB", "7.00 MiB"]]
    assert cells(text, "held") == [["10.00 MiB", "14.00 MiB"], ["65.00%"]]
    assert cells(text, "out of memory") == [["3", ""]]
    assert cells(text, "0 default small") == [["0", "0 B", "0 B", "0", "0 B", "0 B"]]
    assert cells(text, "1 default large") == [
        ["2", "3.50 MiB", "3.00 MiB", "2", "4.50 MiB", "2.50 MiB"]
    ]
    assert cells(text, "below 1M") == [["1", "512.00 KiB", "0", "0 B"]]
    assert cells(text, "1-10M") == [["1", "3.00 MiB", "2", "4.50 MiB"]]
    assert cells(text, "created") == [["5", "10.00 MiB"]]
    assert cells(text, "pinned: ipc") == [["2", "4.00 MiB"]]
    assert cells(text, "paddle rate") == [["30.00%"]]
    assert cells(text, "b") == [["3.00 MiB", "1"]]
    assert "\x1b" not in text


def test_bytes_as_text() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 1536 * 1024, -2048, 5 << 40, 5000 << 40)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 MiB",
        "-2.00 KiB",
        "5.00 TiB",
        "5000.00 TiB",
    ]


@pytest.fixture
def one() -> Allocator:
    return Allocator(driver="null", device_bytes=1 << 30)


def test_lists_of_a_run(one: Allocator) -> None:
    small = one.alloc(700, tag="s")
    first, second = one.alloc(3 * MIB, tag="first"), one.alloc(3 * MIB, tag="second")
    one.free(first)
    one.pin(second, 3 * MIB, "ipc")
    blocks = api.blocks(allocator=one)
    assert [b.address for b in blocks] == sorted(b.address for b in blocks)
    used = {b.address: (b.size, b.requested, b.tag) for b in blocks if b.state == "active"}
    assert used == {small: (1024, 700, "s"), second: (3 * MIB, 3 * MIB, "second")}
    free = api.free_blocks(allocator=one)
    assert {b.state for b in free} == {"free"}
    assert sum(b.size for b in free) == one.stats()["free_mapped_bytes"]
    assert first in {b.address for b in free}
    assert set(free) <= set(api.free_blocks(unmapped=True, allocator=one))
    pages = api.page_map(allocator=one)
    assert sum(p.live for p in pages) == 3 * MIB + 1024
    assert sum(p.state == "mapped" for p in pages) == one.stats()["pages.mapped"]
    first_page = second // PAGE * PAGE
    pinned = [p.address for p in pages if p.pins == {"ipc": 1}]
    assert pinned == [first_page, first_page + PAGE]
    assert [row.tag for row in api.top(1, allocator=one)] == ["second"]
    assert "second" in api.summary(allocator=one)
    held = one.stats()["reserved_bytes.all.current"]
    assert api.fragmentation(allocator=one).held == pytest.approx(1 - (3 * MIB + 1024) / held)


def test_what_nobody_allocated_can_be_seen(one: Allocator) -> None:
    assert api.blocks(allocator=one) == api.page_map(allocator=one) == api.top(allocator=one) == []
    assert "Memory of device 0" in api.summary(allocator=one)
    assert api.snapshot(allocator=one)["segments"] == []


def test_devices_are_named_in_many_ways() -> None:
    import torch

    two = Allocator(driver="null", device_bytes=1 << 30, devices=2)
    two.alloc(512, device=1)
    for device in (1, "cuda:1", torch.device("cuda", 1)):
        assert len(api.top(device=device, allocator=two)) == 1
    for device in (None, 0, "cuda", "cuda:0", torch.device("cuda")):
        assert api.top(device=device, allocator=two) == []
    for device in (-1, True, 1.5, "cuda:x", ""):
        with pytest.raises(Invalid, match="device: must be None, a number from 0, or a device"):
            api.top(device=device, allocator=two)
    with pytest.raises(Invalid, match="device"):
        api.top(device=2, allocator=two)
    with pytest.raises(Invalid, match="n: must be a whole number from 1, but is 0"):
        api.top(0, allocator=two)
