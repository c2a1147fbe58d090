# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How much memory each allocator wastes: `python -m benchmarks.vmm.fragmentation`.

Every allocator, ours and the models of others, runs every modelled trace of the suite, and with
`--traces DIR` the recorded ones in a folder. F_peak = 1 - max A / max R without a limit; C* is the
least capacity over max A. The adversary `robson` is the published worst case of any allocator that
does not move what is live: it is listed and judged apart. Takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.vmm.fragmenting.verdicts import (
    C_STAR,
    DRIVER_SHARE,
    F_PEAK_FLOOR,
    F_PEAK_GOAL,
    JUDGED_AT,
    MOVES_ONE_STREAM,
    MOVES_STREAMS,
    OURS,
    WORSE_THAN_EXPANDABLE,
    Verdict,
    verdicts,
)

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

APART = frozenset({"robson"})
AT = ("ooms", "retries", "syncs", "waits", "driver_ns")
STEALS = ("steals_first_step", "steals_median_step", "steals_max_step")


def traces(folder: str | None, only: list[str] | None) -> Iterator[tuple[str, Callable[[], Trace]]]:
    """(name, what makes the trace), the suite first."""
    from vmm.sim import suite
    from vmm.sim.readers import read_any

    for name in suite.SUITE:
        if only is None or name in only:
            yield name, lambda name=name: suite.trace(name)  # type: ignore[misc]
    files = sorted(Path(folder).iterdir()) if folder else []
    for path in files:
        name = path.name.split(".")[0]
        if path.is_file() and (only is None or name in only):
            yield name, lambda path=path: read_any(path)  # type: ignore[misc]


def cell(trace: Trace, allocator: str, lag_ns: int, apart: bool = False) -> dict[str, Any]:
    """The figures of one allocator on one trace."""
    from vmm.sim import capacity
    from vmm.sim.replay import run

    began = time.perf_counter()
    free = run(trace, allocator, lag_ns=lag_ns)
    if apart:  # it is refused thousands of times: each run ends with the first
        tight = int(capacity.peak(trace) * float(JUDGED_AT))
        stopped = run(trace, allocator, tight, lag_ns=lag_ns, stop_at_oom=True)
        fixed = {float(JUDGED_AT): stopped}
    else:
        fixed = capacity.at_factors(trace, allocator, lag_ns=lag_ns)
    least = capacity.smallest(trace, allocator, lag_ns=lag_ns, known=list(fixed.values()))
    whole = free.as_dict(curve=False)
    found = {name: whole[name] for name in ("f_peak", "f_avg", "f_int", "reserved_peak", *AT)}
    found |= {name: whole[name] for name in STEALS}
    found |= {"c_star": least.overhead, "c_star_bytes": least.capacity, "at": {}}
    for factor, result in fixed.items():
        row = result.as_dict(curve=False)
        found["at"][f"{factor:.2f}"] = {name: row[name] for name in (*AT, *STEALS)}
    if trace.steps > 1 and not apart:
        found["at"][JUDGED_AT] |= steady(trace, allocator, lag_ns)
    found["seconds"] = round(time.perf_counter() - began, 2)
    return found


def steady(trace: Trace, allocator: str, lag_ns: int) -> dict[str, Any]:
    """Modelled driver time of the steps after the first, per step and as a share of their time.

    Ours is also given without what new pages cost: memory that the first step did not need is got
    once, by any allocator, while moves come back.
    """
    import numpy as np

    from vmm.sim.capacity import peak
    from vmm.sim.driver_costs import cost
    from vmm.sim.replay import run

    marks = np.flatnonzero(trace.is_op("m"))[[0, -1]]
    tight = int(peak(trace) * float(JUDGED_AT))
    first, last = (
        run(trace.take(np.arange(mark + 1)), allocator, tight, lag_ns=lag_ns) for mark in marks
    )
    spent = last.driver_ns - first.driver_ns
    span = max(int(np.diff(trace.t_ns[marks])[0]), 1)
    found = {
        "driver_ns_per_step": spent / (trace.steps - 1),
        "driver_share_of_step": spent / span,
    }
    if allocator == OURS:
        pages = last.counters["device_alloc"] - first.counters["device_alloc"]
        page = cost("create") + cost("map") + cost("set_access")
        found["driver_share_without_growth"] = (spent - pages * page) / span
    return found


def measure(
    folder: str | None, only: list[str] | None, allocators: list[str], lag_ns: int
) -> dict[str, Any]:
    """All figures, with what was missing and what went wrong."""
    import numpy as np

    from vmm.sim.capacity import peak
    from vmm.sim.models.registry import is_there

    missing = [name for name in allocators if not is_there(name)]
    rows: dict[str, Any] = {}
    errors: list[str] = []
    for name, make in traces(folder, only):
        trace = make()
        streams = len(np.unique(trace.stream[trace.is_op("a")]))
        row: dict[str, Any] = {"events": len(trace), "steps": trace.steps, "streams": streams}
        row |= {"live_peak": peak(trace), "parameters": trace.header.get("parameters")}
        row["duration_ns"] = int(trace.t_ns[-1] - trace.t_ns[0])
        row["cells"] = {}
        for allocator in allocators:
            if allocator in missing:
                continue
            try:
                row["cells"][allocator] = done = cell(trace, allocator, lag_ns, name in APART)
            except Exception as error:  # the other cells are still worth having
                errors.append(f"{name}, {allocator}: {type(error).__name__}: {error}")
                print(errors[-1], file=sys.stderr)
                continue
            text = f"F_peak {done['f_peak']:.2%}  C* {done['c_star']:.2%}  {done['seconds']:.1f} s"
            print(f"{name:<28}{allocator:<20}{text}", file=sys.stderr, flush=True)
        if OURS in row["cells"]:
            found = verdicts(row["cells"], streams > 1, trace.steps)
            row["verdicts"] = [each._asdict() for each in found]
        rows[name] = row
    return {"missing": missing, "errors": errors, "traces": rows}


def show(found: dict[str, Any], allocators: list[str]) -> None:
    from rich.table import Table

    from vmm.sim.report import show as print_table

    table = Table(title="F_peak / C* / refused and syncs at 1.03", title_justify="left")
    table.add_column("trace")
    for name in allocators:
        table.add_column(name, justify="right")
    for name, row in found["traces"].items():
        texts = [_text(row["cells"].get(allocator)) for allocator in allocators]
        table.add_row(name, *texts)
    print_table(table)
    for apart in (False, True):
        chosen = {
            name: row["verdicts"]
            for name, row in found["traces"].items()
            if (name in APART) == apart and "verdicts" in row
        }
        if chosen:
            print_table(_verdict_table(chosen, apart))


def _verdict_table(rows: dict[str, list[dict[str, Any]]], apart: bool) -> Any:
    from rich.table import Table

    title = (
        "the worst case, judged apart; runs at 1.03 end with the first refusal"
        if apart
        else "verdicts on vmm"
    )
    table = Table(title=title, title_justify="left")
    rules = [
        "F_peak, goal",
        "F_peak, floor",
        "C*",
        "F_peak, expandable",
        "moves",
        "OOM",
        "syncs",
        "driver",
    ]
    for column in ("trace", *rules):
        table.add_column(column, justify="left" if column == "trace" else "right")
    for name, verdict in rows.items():
        table.add_row(name, *(_verdict_text(Verdict(**each)) for each in verdict))
    return table


def _verdict_text(verdict: Verdict) -> str:
    word = {True: "met", False: "MISSED", None: "not judged"}[verdict.met]
    value = f"{verdict.value:.2%}" if isinstance(verdict.value, float) else str(verdict.value)
    if verdict.rule.startswith("moves"):
        value = f"{verdict.value:g}"
    if "expandable" in verdict.rule and verdict.met is not None:
        value = f"{value} : {verdict.limit:.2%}"
    return f"{value} {word}"


def _text(cell: dict[str, Any] | None) -> str:
    if cell is None:
        return "missing"
    tight = cell["at"][JUDGED_AT]
    return f"{cell['f_peak']:.2%} / {cell['c_star']:.2%} / {tight['ooms']}+{tight['syncs']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", metavar="DIR", help="a folder of recorded traces, too")
    parser.add_argument("--only", metavar="NAME,...", help="these traces, not all")
    parser.add_argument("--allocator", metavar="NAME,...", help="these, not all")
    parser.add_argument("--lag-ns", type=int, default=5_000_000)
    parser.add_argument("--json", help="write all figures into this file")
    arguments = parser.parse_args()
    from benchmarks import timing
    from vmm.sim.driver_costs import COSTS
    from vmm.sim.models.registry import MODELS, known

    chosen = arguments.allocator.split(",") if arguments.allocator else list(MODELS)
    allocators = [known(name) for name in chosen]
    only = arguments.only.split(",") if arguments.only else None
    began = time.perf_counter()
    found = measure(arguments.traces, only, allocators, arguments.lag_ns)
    seconds = round(time.perf_counter() - began, 1)
    show(found, allocators)
    if found["missing"]:
        print(f"not there yet: {', '.join(found['missing'])}")
    print(f"{seconds} s")
    if arguments.json:
        targets = {
            "f_peak_goal": F_PEAK_GOAL,
            "f_peak_floor": F_PEAK_FLOOR,
            "c_star": C_STAR,
            "worse_than_expandable_on_one_stream": WORSE_THAN_EXPANDABLE,
            "driver_share_of_step": DRIVER_SHARE,
            "moves_per_step_one_stream": MOVES_ONE_STREAM,
            "moves_per_step_several_streams": MOVES_STREAMS,
        }
        head = {"environment": timing.environment(), "targets": targets, "seconds": seconds}
        head["driver_costs"] = {call: row._asdict() for call, row in COSTS.items()}
        timing.write(arguments.json, {**head, "lag_ns": arguments.lag_ns, **found})
    return 1 if found["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
