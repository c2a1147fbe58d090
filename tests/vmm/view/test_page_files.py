# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Two files beside one another, a range of a file, recordings that began in the middle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.vmm.synthetic_recording import synthetic_recording
from tests.vmm.view.reference import free_runs, walk
from vmm.sim.trace import Trace
from vmm.view.from_trace import from_trace
from vmm.view.window import cut


def by_tag(trace: Trace) -> dict[str, int]:
    _, live, _ = walk(trace)
    state, _, _ = walk(trace, live.index(max(live)))
    totals: dict[str, int] = {}
    for id, size in state.live.items():
        name = trace.header["tags"][state.tags[id]]
        totals[name] = totals.get(name, 0) + size
    return totals


def test_the_difference_of_two_files(show: Any) -> None:
    first = synthetic_recording(1500, seed=1, live=40)
    second = synthetic_recording(2500, seed=2, live=60)
    # The same names under other numbers.
    order = np.array([0, *range(len(first.header["tags"]) - 1, 0, -1)])
    second.tag = order[second.tag].astype(np.int32)
    second.header["tags"] = [first.header["tags"][i] for i in order]
    opened = show(first, second)
    opened.open("diff")
    peaks = [max(walk(each)[1]) for each in (first, second)]
    held = [max(walk(each)[2]) for each in (first, second)]
    ends = [walk(each)[1][-1] for each in (first, second)]
    read = "row => [row.dataset.a, row.dataset.b, row.dataset.change].map(Number)"
    for id, (a, b) in (("peak", peaks), ("held", held), ("end", ends)):
        assert opened.page.eval_on_selector(f"#diff-{id}", read) == [a, b, b - a]
    rows = opened.page.eval_on_selector_all(
        "#diff-growth tbody tr",
        "rows => rows.map(row => [row.dataset.name, Number(row.dataset.a), Number(row.dataset.b)])",
    )
    tags = [by_tag(first), by_tag(second)]
    names = tags[0].keys() | tags[1].keys()
    assert {name: (a, b) for name, a, b in rows} == {
        name: (tags[0].get(name, 0), tags[1].get(name, 0)) for name in names
    }
    changes = [abs(b - a) for _, a, b in rows]
    assert changes == sorted(changes, reverse=True)
    # The other views show the file that is chosen.
    opened.page.select_option("#file select", "1")
    opened.drawn()
    assert opened.value("#peak-live") == peaks[1]
    opened.check_quiet()


@pytest.mark.parametrize(("begin", "end"), [(0, 3000), (1000, 1001), (777, 2345)])
def test_a_range_knows_what_was_there_before_it(show: Any, begin: int, end: int) -> None:
    trace = synthetic_recording(3000, seed=4, live=60)
    end = min(end, len(trace))
    _, live, held = walk(trace)
    opened = show(cut(from_trace(trace, "part"), begin, end))
    first = max(begin - 1, 0)  # what stands at the start is the state after the event before it
    assert opened.value("#peak-live") == max(live[first:end])
    assert opened.value("#peak-held") == max(held[first:end])
    assert opened.value("#events") == end - begin
    if begin:
        assert f"{begin:,} to {end - 1:,}" in opened.text("#events")
    opened.open("map")
    start = opened.page.evaluate("vmmView.store.recording.facts.start_events")
    for event in {begin, (begin + end) // 2, end - 1}:
        opened.cursor(start + event - begin)
        state, _, _ = walk(trace, event)
        assert f"event {event:,}" in opened.text("#cursor-event")
        assert opened.value("#cursor-live") == live[event]
        assert opened.value("#map-blocks") == len(state.taken)
    opened.open("runs")
    assert opened.value("#runs-total") == sum(free_runs(walk(trace, event)[0]))
    opened.check_quiet()


def test_rows_that_describe_the_start_are_no_events(show: Any) -> None:
    trace = synthetic_recording(2000, seed=5, live=60)
    _, live, _ = walk(trace)
    trace.header["initial_rows"] = 500
    opened = show(trace)
    assert opened.value("#events") == len(trace) - 500
    assert opened.value("#peak-live") == max(live[499:])
    peak = live.index(max(live[499:]), 499)
    assert f"event {peak - 500:,}" in opened.text("#peak-live")
    assert opened.page.evaluate("vmmView.store.lo") == 499
    opened.cursor(0)
    assert "start" in opened.text("#cursor-event")
