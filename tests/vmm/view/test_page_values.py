# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the page says, beside what walking the events says."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.vmm.synthetic_recording import synthetic_recording
from tests.vmm.view.reference import free_runs, walk
from vmm.sim.trace import Trace

EVENTS = (0, 1, 511, 512, 513, 1700, 2999)
M, G = 1 << 20, 1 << 30
ENDS = [M, 10 * M, 50 * M, 100 * M, 200 * M, 400 * M, 600 * M, 800 * M, G, 2 * G, 3 * G]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic_recording(3000, seed=3, live=60, step=400)


@pytest.fixture
def opened(show: Any, trace: Trace) -> Any:
    return show(trace)


def test_the_peak_is_exact(opened: Any, trace: Trace) -> None:
    _, live, held = walk(trace)
    assert opened.value("#peak-live") == max(live)
    assert f"{max(live):,} B" in opened.text("#peak-live")
    assert f"event {live.index(max(live)):,}" in opened.text("#peak-live")
    assert opened.value("#peak-held") == max(held)
    assert opened.value("#peak-frag") == pytest.approx(1 - max(live) / max(held))
    assert opened.value("#blocks") == (trace.op == ord("a")).sum()
    opened.check_quiet()


def test_live_and_held_at_the_cursor(opened: Any, trace: Trace) -> None:
    _, live, held = walk(trace)
    for event in EVENTS:
        opened.cursor(event)
        assert opened.value("#cursor-live") == live[event]
        assert opened.value("#cursor-held") == held[event]
        assert opened.value("#cursor-time") == trace.t_ns[event] - trace.t_ns[0]
        assert f"{event:,}" in opened.text("#cursor-event")


def test_every_grouping_sums_to_what_is_live(opened: Any, trace: Trace) -> None:
    _, live, _ = walk(trace)
    for by in ("tag", "stack", "size", "stream"):
        opened.page.select_option("#view-timeline select", by)
        opened.drawn()
        for event in EVENTS:
            sums = opened.page.evaluate(
                f"vmmView.groupsAt({event}).reduce((sum, bytes) => sum + bytes, 0)"
            )
            assert sums == live[event]


def test_the_groups_are_those_of_the_tags(opened: Any, trace: Trace) -> None:
    state, _, _ = walk(trace, 1700)
    expected: dict[str, int] = {}
    for id, size in state.live.items():
        name = trace.header["tags"][state.tags[id]]
        expected[name] = expected.get(name, 0) + size
    labels = opened.page.evaluate("vmmView.store.groups.labels")
    bytes = opened.page.evaluate("[...vmmView.groupsAt(1700)]")
    assert {k: v for k, v in zip(labels, bytes, strict=True) if v} == expected


def test_the_map_has_the_blocks_and_pages(opened: Any, trace: Trace) -> None:
    opened.open("map")
    for event in EVENTS:
        opened.cursor(event)
        state, _, _ = walk(trace, event)
        assert opened.value("#map-blocks") == len(state.taken)
        assert opened.value("#map-bytes") == sum(size for _, size in state.taken.values())
        assert opened.value("#map-pages") == len(state.held)
    opened.check_quiet()


def test_a_page_tells_its_homes_and_its_history(opened: Any, trace: Trace) -> None:
    state, _, _ = walk(trace, 2000)
    moved = [
        int(aux) & ((1 << 56) - 1)
        for op, aux in zip(trace.op[:2000], trace.extra["aux"][:2000], strict=True)
        if op == ord("M") and int(aux) >> 56 == 2
    ]
    page = next(page for page in moved if any(page == p for _, p in state.mapped.values()))
    home = next(address for address, (_, p) in state.mapped.items() if p == page)
    opened.open("map")
    opened.cursor(2000)
    opened.page.evaluate(f"vmmView.store.selectedPage = {page}")
    opened.cursor(2000)
    text = opened.text("#view-map .details")
    assert f"Page {page:,}" in text
    assert f"{home:#x}" in text
    numbers = trace.extra["aux"] & ((1 << 56) - 1)
    events = [e for e in range(len(trace)) if chr(trace.op[e]) in "MU" and numbers[e] == page]
    assert f"History, {len(events)} events" in text
    assert opened.page.locator(".history li").count() == len(events)


def test_clicking_the_physical_map_selects_a_page(opened: Any) -> None:
    opened.open("map")
    opened.page.click("canvas.pages", position={"x": 4, "y": 4})
    opened.drawn()
    assert opened.page.evaluate("vmmView.store.selectedPage") == 0
    assert "Page 0" in opened.text("#view-map .details")
    opened.page.press("canvas.pages", "ArrowRight")
    opened.drawn()
    assert opened.page.evaluate("vmmView.store.selectedPage") > 0


def test_the_histogram_counts_runs(opened: Any, trace: Trace) -> None:
    opened.open("runs")
    for event in EVENTS:
        opened.cursor(event)
        runs = free_runs(walk(trace, event)[0])
        expected = [[0, 0] for _ in range(12)]
        for run in runs:
            place = sum(run >= end for end in ENDS)
            expected[place][0] += 1
            expected[place][1] += run
        rows = opened.page.eval_on_selector_all(
            ".histogram tbody tr",
            "rows => rows.map(row => [Number(row.dataset.count), Number(row.dataset.bytes)])",
        )
        assert rows == expected
        assert opened.value("#runs-largest") == max(runs, default=0)
        assert opened.value("#runs-total") == sum(runs)


def test_fragmentation_at_the_cursor(opened: Any, trace: Trace) -> None:
    opened.open("fragmentation")
    for event in (700, 2222):
        opened.cursor(event)
        state, live, held = walk(trace, event)
        runs = free_runs(state)
        assert opened.value("#frag-unused") == pytest.approx(1 - live[-1] / held[-1])
        assert opened.value("#frag-ext") == pytest.approx(1 - max(runs) / sum(runs))
        page = trace.header["page_size"]
        used = {
            place
            for address, size in state.taken.values()
            for place in range(address // page, (address + size - 1) // page + 1)
        }
        taken = sum(size for _, size in state.taken.values())
        assert opened.value("#frag-pin") == pytest.approx(1 - taken / (len(used) * page))


def test_the_search_finds_all_events_at_an_address(opened: Any, trace: Trace) -> None:
    event = 1234
    while trace.op[event] != ord("a"):
        event += 1
    inside = int(trace.extra["addr"][event]) + int(trace.bytes[event]) // 2
    opened.open("events")
    opened.page.fill("#filter-address", hex(inside))
    opened.drawn()
    begins, sizes = trace.extra["addr"], trace.bytes
    expected = [
        e
        for e in range(len(trace))
        if chr(trace.op[e]) in "afcMU" and begins[e] <= inside < begins[e] + sizes[e]
    ]
    assert event in expected
    assert opened.value("#events-found") == len(expected)
    opened.page.fill("#filter-from", str(event))
    opened.page.fill("#filter-to", str(event))
    opened.drawn()
    assert opened.value("#events-found") == 1


def test_a_row_shows_its_event_and_the_total_after_it(opened: Any, trace: Trace) -> None:
    _, live, _ = walk(trace)
    event = int((trace.op == ord("a")).nonzero()[0][40])
    opened.open("events")
    opened.page.fill("#filter-from", str(event))
    opened.drawn()
    opened.page.click(f'.event-row[data-event="{event}"]')
    opened.drawn()
    row = opened.text(f'.event-row[data-event="{event}"]')
    assert hex(trace.extra["addr"][event]) in row
    assert f"{trace.bytes[event]:,}" in row
    assert f"{live[event]:,}" in row
    details = opened.text("#view-events .details")
    for file, line, function in trace.header["stacks"][trace.extra["stack"][event]]:
        assert f"{function} — {file}:{line}" in details


def test_lifetimes_and_flame_graph(opened: Any, trace: Trace) -> None:
    opened.open("lifetime")
    assert opened.value("#lifetimes") == (trace.op == ord("a")).sum()
    opened.open("flame")
    _, live, _ = walk(trace)
    assert opened.value("#flame-bytes") == max(live)
    opened.page.press("canvas.flame", "ArrowDown")  # main
    opened.page.press("canvas.flame", "ArrowDown")  # forward
    opened.page.press("canvas.flame", "ArrowDown")  # its largest child
    opened.drawn()
    state, _, _ = walk(trace, live.index(max(live)))
    callees: dict[str, int] = {}
    for id, size in state.live.items():
        name = trace.header["stacks"][state.stacks[id]][-3][2]
        callees[name] = callees.get(name, 0) + size
    assert opened.value("#flame-bytes") == max(callees.values())


def test_keys_move_the_cursor_and_the_tabs(opened: Any) -> None:
    opened.cursor(100)
    opened.page.focus("#overview")
    for key, expected in (("ArrowRight", 101), ("ArrowLeft", 100), ("Shift+ArrowRight", 130)):
        opened.page.keyboard.press(key)
        opened.drawn()
        assert opened.value("#cursor-event") == expected
    opened.page.keyboard.press("+")
    opened.drawn()
    assert opened.page.evaluate("vmmView.store.hi - vmmView.store.lo") == pytest.approx(2100, abs=2)
    opened.page.focus("#tab-timeline")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.is_visible("#view-map")
    assert not opened.page.is_visible("#view-timeline")
    opened.check_quiet()


def test_zooming_with_the_wheel_and_across_time(opened: Any, trace: Trace) -> None:
    canvas = opened.page.locator("#view-timeline canvas")
    canvas.hover(position={"x": 600, "y": 100})
    opened.page.mouse.wheel(0, -400)
    opened.page.wait_for_timeout(50)
    opened.drawn()
    width = opened.page.evaluate("vmmView.store.hi - vmmView.store.lo")
    assert width == pytest.approx(len(trace) * 1.0015**-400, rel=0.01)
    opened.page.select_option("#view-timeline select >> nth=1", "time")
    opened.drawn()
    lo, hi = opened.page.evaluate("[vmmView.store.lo, vmmView.store.hi]")
    times = trace.t_ns - trace.t_ns[0]
    assert times[0] <= lo < hi <= times[-1]
    opened.page.click("text=Show all")
    opened.drawn()
    assert opened.page.evaluate("[vmmView.store.lo, vmmView.store.hi]") == [0, times[-1]]
