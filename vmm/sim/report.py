# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Results of replays as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid
from vmm.sim.metrics import steady_median
from vmm.sim.replay import Result

if TYPE_CHECKING:
    from rich.table import Table

    from vmm.sim.capacity import Smallest

_GIB = 1 << 30


def _capacity(result: Result) -> str:
    return "unlimited" if result.capacity is None else f"{result.capacity / _GIB:.3f}"


def _steals(result: Result) -> str:
    steps = result.steals_per_step
    return f"{steps[0]} / {steady_median(steps):g} / {max(steps[1:] or steps)}"


# Title -> what stands in the column.
COLUMNS: dict[str, Callable[[Result], str]] = {
    "allocator": lambda result: result.allocator,
    "capacity GiB": _capacity,
    "A GiB": lambda result: f"{result.measures.live_peak / _GIB:.3f}",
    "R GiB": lambda result: f"{result.measures.reserved_peak / _GIB:.3f}",
    "F_peak": lambda result: _percent(result.measures.f_peak),
    "F_avg": lambda result: _percent(result.measures.f_avg),
    "F_int": lambda result: _percent(result.measures.f_int),
    "OOM": lambda result: str(result.ooms),
    "retries": lambda result: str(result.counters["retries"]),
    "syncs": lambda result: str(result.counters["syncs"]),
    "waits": lambda result: str(result.counters["waits"]),
    "moved per step: first / median / max": _steals,
    "driver ms": lambda result: f"{result.driver_ns / 1e6:.1f}",
    "M events/s": lambda result: f"{result.events / max(result.seconds, 1e-9) / 1e6:.2f}",
}


def table(
    title: str, results: Sequence[Result], smallest: Mapping[str, Smallest] | None = None
) -> Table:
    """The results of one trace; with `smallest`, C* by allocator in a last column."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for name in COLUMNS:
        made.add_column(name, justify="left" if name == "allocator" else "right")
    if smallest is not None:
        made.add_column("C* over A", justify="right")
    for result in results:
        row = [text(result) for text in COLUMNS.values()]
        if smallest is not None:
            found = smallest.get(result.allocator)
            row.append("" if found is None else f"{found.overhead:.2%}")
        made.add_row(*row)
    return made


def show(made: Table) -> None:
    """Prints a table, as wide as it needs to be where nobody sits at a terminal."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=250)
    console.print(made)


def check_json_path(path: str) -> None:
    """Raises `vmm.errors.Invalid` where no file can be written, before the work is done."""
    if Path(path).is_dir():
        raise Invalid(f"JSON cannot be written to {path!r}: it is a folder")
    if not Path(path).absolute().parent.is_dir():
        raise Invalid(f"JSON cannot be written to {path!r}: its folder does not exist")


def write_json(path: str, found: Mapping[str, Any]) -> None:
    """Writes the results, all or nothing."""
    from vmm.sim.atomic_file import new_file

    with new_file(path) as file:
        file.write((json.dumps(found, indent=1) + "\n").encode())


def _percent(fraction: float) -> str:
    return f"{fraction:.2%}"
