# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Measures of fragmentation, from what was live and what was held after each event.

A: live bytes, each request rounded to 512. L: the same as requested. R: bytes held from the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.sim.trace import Trace

ROUNDING = 512
CURVE_POINTS = 512

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Measures:
    """Bytes and fractions. The curve is a dict of equally long arrays: t_ns, live, reserved."""

    live_peak: int
    requested_peak: int
    reserved_peak: int
    f_peak: float  # 1 - max A / max R
    f_int: float  # 1 - max L / max A
    f_avg: float  # mean over time of 1 - A / R
    curve: dict[str, Ints]


def measure(
    trace: Trace, reserved: Ints, reserved_peak: int, failed: NDArray[np.bool_] | None = None
) -> Measures:
    """The measures of a run; `reserved` int64[n]: R after each event of the trace.

    `failed` bool[n] marks the allocs that were refused: they are not counted as live.
    """
    if failed is not None and failed.any():
        trace = replace(trace, bytes=np.where(failed, 0, trace.bytes))
    live, requested = trace.live(ROUNDING), trace.live()
    a, wanted = _peak(live), _peak(requested)
    return Measures(
        a,
        wanted,
        reserved_peak,
        share_lost(a, reserved_peak),
        share_lost(wanted, a),
        time_average(trace.t_ns, live, reserved),
        sampled(trace.t_ns, live, reserved),
    )


def share_lost(used: int, held: int) -> float:
    """1 - used / held, and 0 where nothing is held."""
    return 1 - used / held if held else 0.0


def time_average(t_ns: Ints, live: Ints, reserved: Ints) -> float:
    """The mean over time of 1 - A / R while anything is held; a value lasts to the next event."""
    spans = np.diff(t_ns)
    held = reserved[:-1] > 0
    total = int(spans[held].sum())
    if not total:
        return 0.0
    lost = 1 - live[:-1][held] / reserved[:-1][held]
    return float((spans[held] * lost).sum() / total)


def sampled(t_ns: Ints, live: Ints, reserved: Ints, points: int = CURVE_POINTS) -> dict[str, Ints]:
    """At most `points` pieces of equally many events, each with its largest A and R."""
    count = len(t_ns)
    if not count:
        return {"t_ns": t_ns, "live": live, "reserved": reserved}
    starts = np.unique(np.linspace(0, count, min(points, count), endpoint=False).astype(np.int64))
    return {
        "t_ns": t_ns[starts],
        "live": np.maximum.reduceat(live, starts),
        "reserved": np.maximum.reduceat(reserved, starts),
    }


def per_step(at_marks: Sequence[int], total: int) -> list[int]:
    """How much a counter grew in each step, from its value at each step mark.

    What follows the last mark is no step; without marks the whole run is one.
    """
    if not len(at_marks):
        return [int(total)]
    values: Any = np.diff(np.asarray([0, *at_marks], dtype=np.int64))
    return [int(value) for value in values]


def steady_median(steps: Sequence[int]) -> float:
    """The median of the steps after the first, or of the only one."""
    return float(np.median(steps[1:] if len(steps) > 1 else steps))


def _peak(values: Ints) -> int:
    return int(values.max(initial=0))
