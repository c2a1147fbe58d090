# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The smallest capacity of allocators that are known to need a certain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vmm.models.known_model import NAME
from vmm.errors import Invalid
from vmm.sim.capacity import at_factors, bisect, peak, smallest
from vmm.sim.models import registry
from vmm.sim.trace import from_events

MIB = 1 << 20
UNIT = 100 * MIB
# 70 and 30 MiB at once, 10 MiB later.
TRACE = from_events(
    [(0, "a", 0, 70 * MIB), (1, "a", 1, 30 * MIB), (2, "f", 0), (3, "m", -1), (4, "a", 2, 10 * MIB)]
)


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MODELS, "known", NAME)


@pytest.mark.parametrize("overhead", [1, 7_300_000, 35 * MIB, 900 * MIB])
def test_the_overhead_of_an_allocator_is_found(overhead: int) -> None:
    found = smallest(TRACE, "known", overhead=overhead)
    assert found.failed is not None
    assert found.failed < UNIT + overhead <= found.capacity
    assert found.capacity - found.failed <= UNIT // 1000
    assert found.overhead == found.capacity / UNIT - 1


def test_no_overhead_takes_one_run() -> None:
    found = smallest(TRACE, "known")
    assert (found.capacity, found.overhead, found.failed, found.runs) == (UNIT, 0, None, 1)


def test_runs_at_multiples_of_the_peak_need_not_be_made_again() -> None:
    assert peak(TRACE) == UNIT
    fixed = at_factors(TRACE, "known", overhead=4 * MIB)
    assert {factor: result.ooms for factor, result in fixed.items()} == {
        1.0: 1,
        1.02: 1,
        1.03: 1,
        1.05: 0,
        1.1: 0,
    }
    found = smallest(TRACE, "known", known=list(fixed.values()), overhead=4 * MIB)
    again = smallest(TRACE, "known", overhead=4 * MIB)
    assert (found.capacity, found.failed) == (again.capacity, again.failed)
    assert found.runs == again.runs - 4  # of the five, the last is beyond the first success


@given(st.integers(1, 10**12), st.floats(1, 50), st.sampled_from([0.1, 0.001, 1e-6]))
def test_any_threshold_is_found(unit: int, factor: float, resolution: float) -> None:
    threshold = int(unit * factor)
    asked: dict[int, bool] = {}

    def completes(capacity: int) -> bool:
        assert capacity not in asked
        asked[capacity] = capacity >= threshold
        return asked[capacity]

    found = bisect(completes, unit, resolution)
    assert asked[found.capacity]
    assert found.runs == len(asked)
    if found.failed is None:
        assert found.capacity == unit >= threshold
    else:
        assert asked[found.failed] is False
        assert found.capacity - found.failed <= max(int(resolution * unit), 1)


def test_an_allocator_that_fails_above_a_success() -> None:
    # Completes from 1015 to 1025 and from 1060 on.
    found = bisect(lambda size: 1015 <= size <= 1025 or size >= 1060, 1000, 0.001)
    assert (found.capacity, found.failed) == (1015, 1014)


def test_what_never_completes_is_said() -> None:
    with pytest.raises(Invalid, match="the trace does not complete in"):
        bisect(lambda size: False, 1000)
    with pytest.raises(Invalid, match="resolution: it must be above 0, but is 0"):
        bisect(lambda size: True, 1000, 0)
    with pytest.raises(Invalid, match="the trace allocates nothing"):
        peak(from_events([(0, "m", -1)]))


def test_torchs_segments_need_what_their_sizes_say() -> None:
    # 12 MiB is a segment of its own; 3 MiB lies in one of 20 MiB: 32 MiB for 15.
    trace = from_events([(0, "a", 0, 12 * MIB), (1, "a", 1, 3 * MIB)])
    for allocator, need in (("torch", 32 * MIB), ("vmm", 16 * MIB)):  # ours: 8 pages
        found = smallest(trace, allocator)
        assert found.failed is not None
        assert found.failed < need <= found.capacity <= need + 15 * MIB // 1000
