# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How little memory a trace needs under an allocator, and what happens a little above its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vmm.errors import Invalid
from vmm.sim.metrics import ROUNDING
from vmm.sim.replay import LAG_NS, Result, run
from vmm.sim.trace import Trace

# In units of the largest live bytes.
FACTORS = (1.00, 1.02, 1.03, 1.05, 1.10)
RESOLUTION = 0.001


@dataclass(frozen=True)
class Smallest:
    """C*: `capacity` in bytes, of which a run without a refusal was seen; `overhead` C*/A - 1.

    `failed` is the largest capacity below it that was seen to fail, None if none was tried.
    """

    capacity: int
    overhead: float
    failed: int | None
    runs: int


def peak(trace: Trace) -> int:
    """max A: the largest sum of live requests, each rounded to 512 bytes. Raises `Invalid`."""
    found = int(trace.live(ROUNDING).max(initial=0))
    if not found:
        raise Invalid("the trace allocates nothing")
    return found


def at_factors(
    trace: Trace,
    allocator: str,
    factors: Sequence[float] = FACTORS,
    *,
    lag_ns: int = LAG_NS,
    **options: Any,
) -> dict[float, Result]:
    """A run at each of these multiples of max A, by the multiple."""
    unit = peak(trace)
    return {
        factor: run(trace, allocator, int(unit * factor), lag_ns=lag_ns, **options)
        for factor in factors
    }


def smallest(
    trace: Trace,
    allocator: str,
    *,
    lag_ns: int = LAG_NS,
    resolution: float = RESOLUTION,
    known: Sequence[Result] = (),
    **options: Any,
) -> Smallest:
    """C*, to `resolution` in units of max A, and never below max A.

    `known` are runs of the same trace, allocator, lag and options that need not be made again.
    Raises `vmm.errors.Invalid`.
    """
    unit = peak(trace)
    seen = {each.capacity: each.completed for each in known if each.capacity is not None}

    def completes(capacity: int) -> bool:
        return run(trace, allocator, capacity, lag_ns=lag_ns, stop_at_oom=True, **options).completed

    return bisect(completes, unit, resolution, seen)


def bisect(
    completes: Callable[[int], bool],
    unit: int,
    resolution: float = RESOLUTION,
    known: dict[int, bool] | None = None,
) -> Smallest:
    """The smallest capacity of at least `unit` bytes at which `completes`, within `resolution`.

    `FACTORS` are tried in turn, then larger ones, and the gap below the first that completes is
    halved: an allocator may fail above a capacity at which it succeeds. The answer was asked, or is
    in `known`. Raises `Invalid` for a resolution that is not above 0.
    """
    if not resolution > 0:
        raise Invalid(f"resolution: it must be above 0, but is {resolution}")
    seen = dict(known or {})
    runs = 0

    def ask(capacity: int) -> bool:
        nonlocal runs
        if capacity not in seen:
            runs += 1
            seen[capacity] = completes(capacity)
        return seen[capacity]

    below = None
    for factor in (*FACTORS, *(1 + 0.1 * 2**power for power in range(1, 16))):
        above = int(unit * factor)
        if ask(above):
            break
        below = above
    else:
        raise Invalid(f"the trace does not complete in {above} bytes")
    while below is not None and above - below > max(int(resolution * unit), 1):
        middle = (above + below) // 2
        if ask(middle):
            above = middle
        else:
            below = middle
    return Smallest(above, above / unit - 1, below, runs)
