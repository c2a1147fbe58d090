# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Our own allocator as a contender: the real core over the null driver, not a model of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Invalid
from vmm.sim.driver_costs import native_latency
from vmm.sim.metrics import ROUNDING, per_step
from vmm.sim.trace import REPLAYED, Trace

# A device that holds this many times what is live at most: only `capacity` limits.
_ROOM = 8
_LEAST_DEVICE = 1 << 30
_LEAST_RING = 1 << 16  # events
_OURS = {
    "driver": "it is the null driver",
    "devices": "there is one",
    "device_bytes": "use --capacity",
    "limit": "use --capacity",
    "lag_ns": "use --lag",
    "counting": "driver time is modelled",
    "latency": "it is the table of vmm.sim.driver_costs",
}
# Actions and causes of csrc/vmm.h.
_ALLOC, _MAP, _UNMAP, _STEP = 1, 4, 5, 9
_CREATE, _POOL, _MOVE, _ALIAS = 0, 1, 2, 3
_CAUSE_SHIFT = np.uint64(56)


@dataclass(frozen=True)
class NativeRun:
    """What a native replay did; arrays have one entry per event of the trace.

    ``reserved`` is built from the pages that were mapped: what was created ahead of need appears
    when it is first used. ``reserved_peak`` is exact.
    """

    counters: dict[str, int]
    failed: NDArray[np.bool_]
    reserved: NDArray[np.int64]
    reserved_peak: int
    steals_per_step: list[int]
    seconds: float


class VmmModel:
    """The allocator with `capacity` as its limit; without one (None) its soft limit rules.

    `options` are keys of its configuration. Raises `vmm.errors.Invalid` for an unknown one, and for
    one that a replay sets itself.
    """

    name = "vmm"

    def __init__(self, capacity: int | None = None, **options: object) -> None:
        for key in options:
            if key in _OURS:
                raise Invalid(f"the option {key} of vmm cannot be set in a replay: {_OURS[key]}")
        self.capacity, self.options = capacity, options
        self._open(0, _LEAST_DEVICE).close()  # refuses what is unknown

    def replay_trace(self, trace: Trace, lag_ns: int, stop_at_oom: bool = False) -> NativeRun:
        """Runs the whole trace; `lag_ns` is how long after its event the work of a stream ends."""
        chosen = trace.is_op(REPLAYED)
        events, ids = replay_events(trace, chosen)
        device_bytes = max(self.capacity or 0, _ROOM * int(trace.live(ROUNDING).max(initial=0)))
        ring = (4 * len(events)) + _LEAST_RING
        while True:
            with self._open(lag_ns, max(device_bytes, _LEAST_DEVICE)) as allocator:
                rows = _make_pools(allocator, events)
                allocator.record_start(ring)
                result = allocator.replay(rows, ids, stop_at_oom=stop_at_oom, addresses=True)
                recorded, lost = allocator.record_read(ring)
                stats = allocator.stats()
            if not lost:
                break
            ring = 2 * (ring + lost)  # more pages moved than the ring held
        assert result.addresses is not None
        # A run that stops has done the event that failed.
        done = np.flatnonzero(chosen)[: result.done]
        asked = trace.op[done] == ord("a")
        refused = asked & (result.addresses[: len(done)] == 0)
        failed, placed = np.zeros(len(trace), dtype=bool), np.zeros(len(trace), dtype=bool)
        failed[done], placed[done] = refused, asked & ~refused
        return NativeRun(
            counters=_counters(stats),
            failed=failed,
            reserved=_reserved(recorded, placed, stats["page_size"]),
            reserved_peak=stats["reserved_bytes.all.peak"],
            steals_per_step=_steals(recorded),
            seconds=result.elapsed_ns / 1e9,
        )

    def _open(self, lag_ns: int, device_bytes: int) -> Allocator:
        config: dict[str, object] = {
            "driver": "null",
            "device_bytes": device_bytes,
            "lag_ns": lag_ns,
            "latency": native_latency(),
            "counting": False,  # it would add the time that the null driver really takes
        }
        # A limit would be used in full before a page moves, so there is none without a capacity.
        if self.capacity is not None:
            config["limit"] = self.capacity
        return Allocator({**config, **self.options})


def replay_events(
    trace: Trace, chosen: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.void], int]:
    """The events of a trace as the core takes them, and how many allocations they name.

    `chosen` bool[n] picks the events; by default those that a replay knows.
    """
    if chosen is None:
        chosen = trace.is_op(REPLAYED)
    ids, numbers = np.unique(trace.id[chosen], return_inverse=True)
    events = np.zeros(int(np.count_nonzero(chosen)), np.dtype(native.ReplayEvent))
    for field, values in (
        ("t_ns", trace.t_ns),
        ("bytes", trace.bytes),
        ("stream", trace.stream),
        ("pool", trace.pool),
        ("op", trace.op),
    ):
        events[field] = values[chosen]
    events["id"] = numbers
    return events, len(ids)


def _make_pools(allocator: Allocator, events: NDArray[np.void]) -> NDArray[np.void]:
    """Makes every private pool of the events; returns them with the numbers it got."""
    pools, places = np.unique(events["pool"], return_inverse=True)
    numbers = [allocator.pool_create(f"pool {pool}") if pool else 0 for pool in pools]
    events = events.copy()
    events["pool"] = np.asarray(numbers, dtype=np.uint32)[places]
    return events


def _counters(stats: dict[str, int]) -> dict[str, int]:
    return {
        "device_alloc": stats["num_device_alloc"],
        "device_free": stats["num_device_free"],
        "syncs": stats["syncs"],
        "retries": stats["num_alloc_retries"],
        "steals": stats["steals.move"] + stats["steals.alias"],
        "waits": stats["waits"],
        "driver_ns": sum(
            value
            for name, value in stats.items()
            if name.startswith("driver.") and name.endswith(".ns")
        ),
    }


def _causes(recorded: NDArray[np.void]) -> NDArray[np.int64]:
    result: NDArray[np.int64] = (recorded["aux"] >> _CAUSE_SHIFT).astype(np.int64)
    return result


def _steals(recorded: NDArray[np.void]) -> list[int]:
    """Pages that were taken from another address, step by step."""
    moved = (recorded["action"] == _MAP) & np.isin(_causes(recorded), (_MOVE, _ALIAS))
    count = np.cumsum(moved)
    marks = count[recorded["action"] == _STEP]
    return per_step(marks.tolist(), int(count[-1]) if len(count) else 0)


def _reserved(
    recorded: NDArray[np.void], placed: NDArray[np.bool_], page: int
) -> NDArray[np.int64]:
    """int64[n]: bytes held after each event; `placed` bool[n] marks the allocs that succeeded.

    Pages are recorded before the alloc that they were for. Those in the pool stay held.
    """
    causes, action = _causes(recorded), recorded["action"]
    from_pool = (action == _MAP) & (causes <= _POOL)
    to_pool = (action == _UNMAP) & (causes == _POOL)
    released = (action == _UNMAP) & (causes == _CREATE)
    used = np.cumsum(from_pool.astype(np.int64) - to_pool - released)
    gone = np.cumsum(released)
    held = np.maximum.accumulate(used + gone) - gone
    at_allocs = np.append(0, held[action == _ALLOC])
    result: NDArray[np.int64] = at_allocs[np.cumsum(placed)] * page
    return result
