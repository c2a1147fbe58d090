# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs a trace through an allocator and measures what it held, moved and asked of the driver.

An allocation that is refused does not end the run: it is skipped, and so is its free. The work that
was queued on a stream before a free ends `lag_ns` after the kernels of the stream, so that memory
which another stream was recorded on comes back late, as on a device that runs behind its host.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import Invalid
from vmm.sim.driver_costs import modelled_ns
from vmm.sim.metrics import Measures, measure, per_step, steady_median
from vmm.sim.models.base import Model, OutOfMemory
from vmm.sim.models.registry import model_class
from vmm.sim.trace import REPLAYED, Trace

LAG_NS = 5_000_000


@dataclass(frozen=True)
class Result:
    """One trace under one allocator. Bytes, fractions and counts; `capacity` None: no limit."""

    allocator: str
    trace: str
    capacity: int | None
    lag_ns: int
    options: Mapping[str, object]
    events: int  # that were run: fewer than the trace has if it was stopped
    seconds: float
    measures: Measures
    ooms: int
    first_oom: int | None  # the event
    counters: Mapping[str, int]
    steals_per_step: list[int] = field(repr=False)

    @property
    def completed(self) -> bool:
        """Whether every allocation was served."""
        return self.ooms == 0

    @property
    def driver_ns(self) -> int:
        """Modelled time of the driver's calls, by the table that all allocators share."""
        return modelled_ns(self.counters)

    def as_dict(self, curve: bool = True) -> dict[str, Any]:
        """All of it for JSON; the curve with `curve` only."""
        measures = {name: value for name, value in vars(self.measures).items() if name != "curve"}
        counters = dict(self.counters) | {"driver_ns": self.driver_ns}
        steps = self.steals_per_step
        found = {
            "allocator": self.allocator,
            "trace": self.trace,
            "capacity": self.capacity,
            "lag_ns": self.lag_ns,
            "options": dict(self.options),
            "events": self.events,
            "events_per_second": round(self.events / self.seconds) if self.seconds else None,
            **measures,
            "ooms": self.ooms,
            "first_oom": self.first_oom,
            **counters,
            "steals_first_step": steps[0],
            "steals_median_step": steady_median(steps),
            "steals_max_step": max(steps[1:] or steps),
        }
        if curve:
            found["curve"] = {name: row.tolist() for name, row in self.measures.curve.items()}
        return found


def make_model(name: str, capacity: int | None, options: Mapping[str, object], lag_ns: int) -> Any:
    """The model of an allocator; one that knows an option ``lag_ns`` gets it.

    Raises `vmm.errors.Invalid` for an unknown name or option, and for a capacity below 1 byte.
    """
    if capacity is not None and capacity < 1:
        raise Invalid(f"capacity: it must be at least 1 byte, but is {capacity}")
    if lag_ns < 0:
        raise Invalid(f"lag_ns: it must not be negative, but is {lag_ns}")
    kind = model_class(name)
    given = {**options, **({"lag_ns": lag_ns} if _has_lag(kind) else {})}
    try:
        inspect.signature(kind).bind(capacity, **given)
    except TypeError as error:
        raise Invalid(f"allocator {name}: {error}") from None
    return kind(capacity, **given)


def run(
    trace: Trace,
    allocator: str,
    capacity: int | None = None,
    *,
    lag_ns: int = LAG_NS,
    stop_at_oom: bool = False,
    **options: object,
) -> Result:
    """Runs a trace through the allocator of that name, with at most `capacity` bytes.

    With `stop_at_oom` the first refusal ends the run. `options` are those of the model. Raises
    `vmm.errors.Invalid` for a name or an option that there is not.
    """
    model = make_model(allocator, capacity, options, lag_ns)
    failed: NDArray[np.bool_]
    if hasattr(model, "replay_trace"):
        native = model.replay_trace(trace, lag_ns, stop_at_oom)
        failed, reserved, peak = native.failed, native.reserved, native.reserved_peak
        counters, steps, seconds = native.counters, native.steals_per_step, native.seconds
        refused = np.flatnonzero(failed)
        done = int(refused[0]) + 1 if stop_at_oom and len(refused) else len(trace)
    else:
        driven = _drive(model, trace, 0 if _has_lag(type(model)) else lag_ns, stop_at_oom)
        failed = np.zeros(len(trace), dtype=bool)
        failed[driven.failed] = True
        done, seconds = len(driven.reserved), driven.seconds
        reserved = np.zeros(len(trace), dtype=np.int64)
        reserved[:done] = driven.reserved
        reserved[done:] = driven.reserved[-1] if done else 0
        counters, peak = dict(model.counters), int(reserved.max(initial=0))
        steps = per_step(driven.steals_at_marks, counters["steals"])
        refused = np.flatnonzero(failed)
    return Result(
        allocator=allocator,
        trace=str(trace.header.get("name") or trace.header.get("source") or ""),
        capacity=capacity,
        lag_ns=lag_ns,
        options=options,
        events=done,
        seconds=seconds,
        measures=measure(trace, reserved, peak, failed),
        ooms=len(refused),
        first_oom=int(refused[0]) if len(refused) else None,
        counters=counters,
        steals_per_step=steps,
    )


@dataclass
class _Driven:
    reserved: list[int]  # after each event
    failed: list[int]  # events
    steals_at_marks: list[int]
    seconds: float = 0.0


def _has_lag(kind: Any) -> bool:
    return "lag_ns" in getattr(sys.modules[kind.__module__], "OPTIONS", {})


def _drive(model: Model, trace: Trace, lag_ns: int, stop_at_oom: bool) -> _Driven:
    """Event by event. With a lag the model is told of as much work at each free that needs it."""
    out = _Driven([], [], [])
    missing: set[int] = set()
    uses: dict[int, set[int]] = {}
    busy: dict[int, int] = {}
    now = -1
    keep = trace.is_op(REPLAYED).tolist()
    rows = zip(
        trace.t_ns.tolist(),
        map(chr, trace.op.tolist()),
        trace.id.tolist(),
        trace.bytes.tolist(),
        trace.stream.tolist(),
        trace.pool.tolist(),
        strict=True,
    )
    start = time.perf_counter()
    for event, (t_ns, op, id, size, stream, pool) in enumerate(rows):
        if keep[event] and not (op in "fr" and id in missing):
            if t_ns != now:
                now = t_ns
                model.advance(now)
            if op == "a":
                try:
                    model.alloc(id, size, stream, pool)
                except OutOfMemory:
                    missing.add(id)
                    out.failed.append(event)
                    if stop_at_oom:
                        out.reserved.append(model.reserved)
                        break
            elif op == "f":
                for each in uses.pop(id, ()) if uses else ():
                    begin, end = max(now, busy.get(each, 0)), now + lag_ns
                    if begin < end:
                        model.kernel(each, end - begin)
                        busy[each] = end
                model.free(id)
            elif op == "r":
                model.record_stream(id, stream)
                if lag_ns:
                    uses.setdefault(id, set()).add(stream)
            elif op == "k":
                model.kernel(stream, size)
                busy[stream] = max(now, busy.get(stream, 0)) + size
            elif op == "s":
                model.sync(stream)
                busy.pop(stream, None)
            elif op == "m":
                model.step()
                out.steals_at_marks.append(model.counters["steals"])
        out.reserved.append(model.reserved)
    out.seconds = time.perf_counter() - start
    return out
