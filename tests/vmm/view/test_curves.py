# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Curves, free runs and shares in Python, beside a walk over the events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.vmm.synthetic_recording import synthetic_recording
from tests.vmm.view.reference import free_runs, walk
from vmm.sim.trace import Trace, from_events
from vmm.view import curves
from vmm.view import free_runs as runs
from vmm.view.from_trace import from_trace
from vmm.view.top import shares
from vmm.view.window import cut


@pytest.mark.parametrize("seed", range(4))
def test_curves_are_those_of_the_walk(seed: int) -> None:
    trace = synthetic_recording(2500, seed=seed, live=50)
    recording = from_trace(trace, "x")
    _, live, held = walk(trace)
    assert curves.live(recording).tolist() == live
    assert curves.held(recording).tolist() == held
    asked = np.cumsum(np.where(trace.op == ord("a"), trace.extra["requested"], 0))
    assert curves.live(recording, "requested").max() <= asked.max()


@pytest.mark.parametrize("seed", range(3))
def test_free_runs_are_those_of_the_walk(seed: int) -> None:
    trace = synthetic_recording(2000, seed=seed, live=50)
    recording = from_trace(trace, "x")
    for event in (0, 7, 500, 1500, 1999):
        found = runs.free_runs(recording, event)
        assert found.tolist() == free_runs(walk(trace, event)[0])
        counts = runs.histogram(found)
        assert counts.sum() == len(found)
        assert len(counts) == len(runs.LABELS) == 12


def test_the_histogram_puts_borders_into_the_range_above() -> None:
    m, g = 1 << 20, 1 << 30
    sizes = [1, m - 1, m, 10 * m - 1, 10 * m, 800 * m, g - 1, g, 2 * g, 3 * g - 1, 3 * g, 9 * g]
    assert runs.histogram(np.array(sizes)).tolist() == [2, 2, 1, 0, 0, 0, 0, 0, 2, 1, 2, 2]


def test_shares_by_tag_and_stack() -> None:
    trace = synthetic_recording(1500, seed=6, live=40)
    state, _, _ = walk(trace, 1200)
    recording = from_trace(trace, "x")
    for by, numbers in (("tag", state.tags), ("stack", state.stacks)):
        found = shares(recording, 1200, by)
        assert sum(share.bytes for share in found) == state.live_bytes
        assert sum(share.blocks for share in found) == len(state.live)
        assert len(found) == len({numbers[id] for id in state.live})
        assert [share.bytes for share in found] == sorted(
            (share.bytes for share in found), reverse=True
        )


@st.composite
def _ranges(draw: Callable[..., int]) -> tuple[int, int]:
    begin = draw(st.integers(0, 1499))
    return begin, draw(st.integers(begin + 1, 1500))


TRACE = synthetic_recording(1500, seed=8, live=40)
WHOLE = from_trace(TRACE, "x")
_, LIVE, HELD = walk(TRACE)


@given(ends=_ranges())
def test_a_cut_has_the_curves_of_the_whole(ends: tuple[int, int]) -> None:
    begin, end = ends
    part = cut(WHOLE, begin, end)
    start = part.start_events
    assert len(part) - start == end - begin
    assert curves.live(part)[start:].tolist() == LIVE[begin:end]
    assert curves.held(part)[start:].tolist() == HELD[begin:end]
    last = len(part) - 1
    assert runs.free_runs(part, last).tolist() == runs.free_runs(WHOLE, end - 1).tolist()
    assert part.t_ns[start:].tolist() == WHOLE.t_ns[begin:end].tolist()


def test_pages_that_were_mapped_before_the_first_event() -> None:
    """A page that is unmapped without having been mapped was held from the start."""
    page, mapped = 2 << 20, 5
    rows = [  # t, op, id, bytes, stream, pool, tag; address, aux
        ((0, "m", -1), 0, 0),
        ((1, "U", -1, page), 4 * page, mapped | 2 << 56),  # moves
        ((2, "M", -1, page), 8 * page, mapped | 2 << 56),
        ((3, "M", -1, page), 9 * page, 6),  # new
        ((4, "U", -1, page), 8 * page, mapped | 1 << 56),  # into the pool
        ((5, "U", -1, page), 9 * page, 6),  # given back
        ((6, "M", -1, page), 9 * page, mapped | 1 << 56),  # out of the pool
        ((7, "U", -1, page), 9 * page, mapped | 4 << 56),  # sleeps
        ((8, "M", -1, page), 9 * page, 7),  # new
        ((9, "U", -1, page), 9 * page, 7 | 1 << 56),  # into the pool
        ((10, "U", -1, page), 0, 7),  # given back from there, without an address
    ]
    trace = from_events([row for row, _, _ in rows])
    trace = Trace(
        {},
        **{name: trace.columns[name] for name in ("t_ns", "op", "id", "bytes")},
        **{name: trace.columns[name] for name in ("stream", "pool", "tag")},
        extra={
            "addr": np.array([address for _, address, _ in rows]),
            "aux": np.array([aux for _, _, aux in rows]),
        },
    )
    recording = from_trace(trace, "x")
    assert recording.held_before == page
    held = [page, page, page, 2 * page, 2 * page, page, page, 0, page, page, 0]
    assert curves.held(recording).tolist() == held
