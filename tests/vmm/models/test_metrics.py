# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Measures of traces that are small enough to work them out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from vmm.allocator import Allocator
from vmm.errors import Invalid
from vmm.sim.driver_costs import COSTS, cost, modelled_ns, native_latency
from vmm.sim.metrics import measure, per_step, sampled, share_lost, steady_median, time_average
from vmm.sim.trace import from_events

# Live, rounded: 1024, 1536, 512, 512. As requested: 1000, 1512, 512, 512.
SMALL = from_events([(0, "a", 0, 1000), (10, "a", 1, 512), (20, "f", 0), (40, "m", -1)])
HELD = np.array([2048, 2048, 2048, 1024])


def test_a_small_trace() -> None:
    found = measure(SMALL, HELD, 2048)
    assert (found.live_peak, found.requested_peak, found.reserved_peak) == (1536, 1512, 2048)
    assert found.f_peak == 0.25
    assert found.f_int == 1 - 1512 / 1536
    assert found.f_avg == pytest.approx((10 * 0.5 + 10 * 0.25 + 20 * 0.75) / 40)
    assert {name: row.tolist() for name, row in found.curve.items()} == {
        "t_ns": [0, 10, 20, 40],
        "live": [1024, 1536, 512, 512],
        "reserved": [2048, 2048, 2048, 1024],
    }


def test_what_was_refused_is_not_live() -> None:
    found = measure(SMALL, HELD, 2048, np.array([False, True, False, False]))
    assert (found.live_peak, found.requested_peak) == (1024, 1000)
    assert found.curve["live"].tolist() == [1024, 1024, 0, 0]


def test_nothing_held_is_nothing_lost() -> None:
    empty = from_events([])
    found = measure(empty, np.zeros(0, np.int64), 0)
    assert (found.f_peak, found.f_int, found.f_avg, found.live_peak) == (0, 0, 0, 0)
    assert share_lost(0, 0) == 0
    times = np.array([0, 5, 10])
    # Nothing is held until 5: that time does not count.
    assert time_average(times, np.array([0, 1, 1]), np.array([0, 4, 4])) == 0.75


def test_a_curve_keeps_the_peaks_of_what_it_leaves_out() -> None:
    live = np.array([1, 9, 2, 3, 4, 8])
    found = sampled(np.arange(6), live, live * 2, points=3)
    assert found["t_ns"].tolist() == [0, 2, 4]
    assert found["live"].tolist() == [9, 3, 8]
    assert found["reserved"].tolist() == [18, 6, 16]


def test_steps() -> None:
    assert per_step([3, 3, 10], 12) == [3, 0, 7]  # what follows the last mark is no step
    assert per_step([], 12) == [12]
    assert steady_median([50, 1, 2, 9]) == 2
    assert steady_median([50]) == 50


def test_driver_time_of_segments_and_of_pages() -> None:
    segments = {"device_alloc": 3, "device_free": 1, "syncs": 2, "waits": 4}
    assert modelled_ns(segments) == 3 * 100_000 + 100_000 + 2 * 10_000 + 4 * 5_000
    pages = {"device_alloc": 3, "device_free": 2, "maps": 4, "unmaps": 1, "syncs": 1, "waits": 0}
    assert modelled_ns(pages) == 10_000 + 3 * 30_000 + 4 * 45_000 + 35_000 + 2 * 20_000
    assert modelled_ns({**pages, "driver_ns": 7}) == 7


def test_a_call_may_cost_by_the_page() -> None:
    assert cost("map", 3, 20 << 20) == 15_000
    assert cost("set_access", 3, 20 << 20) == 3 * 10 * 40_000
    assert cost("unmap", 1, 4096) == 35_000
    with pytest.raises(Invalid, match="there is no driver call 'mop'"):
        cost("mop")
    assert all(row.source for row in COSTS.values())


def test_the_table_is_that_of_the_native_driver() -> None:
    def times(latency: str) -> dict[str, int]:
        config = {"driver": "null", "device_bytes": "1GiB", "counting": 0}
        with Allocator(config, latency=latency) as allocator:
            kept = [allocator.alloc(3 << 20, stream=stream) for stream in (0, 1, 0)]
            for address in kept:
                allocator.record_stream(address, 2)
                allocator.free(address)
            allocator.alloc(8 << 20)
            allocator.trim()
            allocator.compact()
            stats = allocator.stats()
        return {name: stats[name] for name in stats if name.endswith(".ns")}

    found = times(native_latency())
    assert found == times("cuda")
    assert found["driver.create.ns"] > 0
    assert found["driver.event.ns"] > 0
