# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Ranges as people write them."""

from __future__ import annotations

import numpy as np
import pytest

from vmm.errors import Invalid
from vmm.sim.trace import from_events
from vmm.view.from_trace import from_trace
from vmm.view.window import parse_range

RECORDING = from_trace(from_events([(10**6 * i + 500, "m", -1) for i in range(100)]), "x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10:20", (10, 20)),
        (":20", (0, 20)),
        ("90:", (90, 100)),
        (":", (0, 100)),
        ("90:1000", (90, 100)),
        ("10ms:20ms", (10, 20)),
        ("9.5ms:0.02s", (10, 20)),
        ("1us:2500000ns", (1, 3)),
        ("10:20ms", (10, 20)),
    ],
)
def test_ranges(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text, RECORDING) == expected


@pytest.mark.parametrize("text", ["5", "1:2:3", "a:b", "1.5:3", "-3:4", "10ms 20ms:", "1h:2h"])
def test_what_is_no_range(text: str) -> None:
    with pytest.raises(Invalid, match="range"):
        parse_range(text, RECORDING)


@pytest.mark.parametrize("text", ["20:20", "30:20", "100:", "1s:2s"])
def test_ranges_without_events(text: str) -> None:
    with pytest.raises(Invalid, match="none of the 100 events"):
        parse_range(text, RECORDING)


def test_events_are_counted_from_the_first_that_happened() -> None:
    trace = from_events([(i, "m", -1) for i in range(50)])
    trace.header["initial_rows"] = 10
    recording = from_trace(trace, "x")
    assert parse_range("5:20", recording) == (15, 30)
    assert parse_range(":", recording) == (10, 50)
    assert parse_range("0ns:20ns", recording) == (10, 20)
    assert np.all(recording.op == ord("m"))
