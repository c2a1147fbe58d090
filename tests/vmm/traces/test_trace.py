# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
from __future__ import annotations

import re

import numpy as np
import pytest

from vmm.errors import Invalid
from vmm.sim.trace import Trace, from_events

ROWS = [
    (0, "a", 0, 100, 0, 0, 1),
    (5, "a", 1, 1000, 2, 0, 0),
    (7, "r", 0, 0, 2),
    (9, "f", 0),
    (9, "k", -1, 500, 2),
    (12, "a", 2, 1),
    (20, "f", 1),
]


def test_a_trace_of_rows_has_their_values_and_zero_for_what_they_leave_out() -> None:
    trace = from_events(ROWS, {"source": "by hand", "tags": ["", "weights"]})
    assert bytes(trace.op.tolist()).decode() == "aarfkaf"
    assert trace.bytes.tolist() == [100, 1000, 0, 0, 500, 1, 0]
    assert trace.stream.tolist() == [0, 2, 2, 0, 2, 0, 0]
    assert trace.tag.tolist() == [1, 0, 0, 0, 0, 0, 0]
    assert {name: str(column.dtype) for name, column in trace.columns.items()} == {
        "t_ns": "int64",
        "op": "uint8",
        "id": "int64",
        "bytes": "int64",
        "stream": "int32",
        "pool": "int32",
        "tag": "int32",
    }


def test_what_is_live_after_each_event() -> None:
    trace = from_events(ROWS)
    assert trace.live().tolist() == [100, 1100, 1100, 1000, 1000, 1001, 1]
    assert trace.live(512).tolist() == [512, 1536, 1536, 1024, 1024, 1536, 512]


def test_the_event_that_frees_each_allocation() -> None:
    assert from_events(ROWS).frees().tolist() == [3, 6, 7]


def test_step_marks_go_in_front_of_events_and_take_their_time() -> None:
    trace = from_events(ROWS).with_steps([0, 3, 7, 3])
    assert bytes(trace.op.tolist()).decode() == "maarmfkafm"
    assert trace.t_ns.tolist() == [0, 0, 5, 7, 9, 9, 9, 12, 20, 20]
    assert trace.steps == 3
    assert trace.with_steps([]).steps == 3
    trace.validate()
    with pytest.raises(Invalid, match="in front of events 0 to 7, not 0 to 8"):
        from_events(ROWS).with_steps([0, 8])


def test_step_marks_keep_extra_columns_in_line() -> None:
    trace = from_events(ROWS)
    trace = Trace(
        {},
        **trace.columns,
        extra={"addr": np.arange(7), "mine": np.ones(7, int)},
    )
    marked = trace.with_steps([2])
    assert marked.extra["addr"].tolist() == [0, 1, 0, 2, 3, 4, 5, 6]
    assert marked.extra["mine"].dtype == np.int64


def test_some_of_the_events() -> None:
    part = from_events(ROWS, {"source": "x"}).take(np.array([1, 6]), notes=["a part"])
    assert part.header == {"source": "x", "notes": ["a part"]}
    assert part.id.tolist() == [1, 1]
    assert len(part) == 2


def test_an_empty_trace_is_a_trace() -> None:
    trace = from_events([])
    assert len(trace) == 0
    assert trace.live().tolist() == []
    assert trace.with_steps([0]).steps == 1


# Rows, and what is said of them.
BROKEN = {
    "unknown op": ([(0, "q", 1, 1)], "event 0 has op 'q'; known are a f r"),
    "short row": ([(0, "a")], "event 0 has 2 fields; a row has 3 to 7"),
    "twice allocated": (
        [(0, "a", 4, 1), (0, "f", 4), (0, "a", 4, 1)],
        "event 2 of the trace allocates id 4, which was allocated before",
    ),
    "twice freed": (
        [(0, "a", 4, 1), (0, "f", 4), (0, "f", 4)],
        "event 2 of the trace frees id 4, which was freed before",
    ),
    "never allocated": ([(0, "f", 9)], "event 0 of the trace frees id 9, which is never allocated"),
    "freed first": (
        [(0, "f", 4), (0, "a", 4, 1)],
        "event 0 of the trace frees id 4 before its alloc",
    ),
    "recorded after the free": (
        [(0, "a", 4, 1), (0, "f", 4), (0, "r", 4)],
        "event 2 of the trace records a stream on id 4, which is not live",
    ),
    "recorded before": (
        [(0, "r", 4), (0, "a", 4, 1)],
        "event 0 of the trace records a stream on id 4, which is not live",
    ),
    "no bytes": ([(0, "a", 4, 0)], "event 0 of the trace allocates 0 bytes; at least 1"),
    "negative bytes": (
        [(0, "k", 4, -3)],
        "event 0 of the trace has bytes -3; it cannot be negative",
    ),
    "negative id": (
        [(0, "a", -4, 1)],
        "event 0 of the trace allocates id -4; it cannot be negative",
    ),
    "backwards": ([(5, "m", 0), (4, "m", 0)], "event 1 of the trace goes back in time to 4 ns"),
    "tag": ([(0, "a", 4, 1, 0, 0, 3)], "event 0 of the trace has tag 3; the header names 2"),
    "no number": ([(0, "a", 4, 1.5)], "column bytes holds float64, not integers"),
    "too large": ([(0, "a", 4, 1, 1 << 40)], "column stream holds 1099511627776 to 1099511627776"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_is_named_with_its_event(case: str) -> None:
    rows, text = BROKEN[case]
    with pytest.raises(Invalid, match=re.escape(text)):
        from_events(rows, {"tags": ["", "x"]})


def test_columns_of_different_lengths_are_refused() -> None:
    columns = from_events(ROWS).columns
    columns["id"] = columns["id"][:3]
    with pytest.raises(Invalid, match=re.escape("column id has shape (3,), but t_ns has 7 events")):
        Trace({}, **columns)
