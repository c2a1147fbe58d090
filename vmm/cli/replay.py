# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm replay``: traces through allocators, side by side."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_TIMES = {"": 1, "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([A-Za-z]*)")


_COLUMNS = """A: most bytes live at once, in blocks of 512 B. R: most physical bytes held.
F_peak = 1 - A/R; F_avg: the mean of 1 - live/held over time; F_int = 1 - requested/A.
Moved: pages in the first step, the median of the others, and the most.
C* (with --capacity-search): the least capacity without an OOM, over A."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _COLUMNS
    parser.add_argument(
        "traces",
        metavar="TRACE",
        nargs="+",
        help="a trace or snapshot of any supported format, or the name of a modelled one",
    )
    parser.add_argument(
        "--allocator", metavar="NAME,...", default="torch,vmm", help="default: torch,vmm"
    )
    parser.add_argument(
        "--capacity",
        metavar="SIZE,...",
        default="unlimited",
        help="bytes (80GiB), multiples of what is live at most (1.03x), or unlimited",
    )
    parser.add_argument(
        "--option",
        metavar="ALLOCATOR.KEY=VALUE",
        action="append",
        default=[],
        help="an option of an allocator, such as vmm.policy=steal_first; may be repeated",
    )
    parser.add_argument(
        "--lag", metavar="TIME", default="5ms", help="how far the device runs behind"
    )
    parser.add_argument(
        "--capacity-search", action="store_true", help="also find the least capacity of each"
    )
    parser.add_argument("--device", type=int, help="the device to read, where a file has several")
    parser.add_argument("--json", metavar="OUT", help="write all figures and curves to a file")


def run(arguments: argparse.Namespace) -> int:
    from vmm.sim import capacity, report
    from vmm.sim.models.registry import known
    from vmm.sim.replay import make_model
    from vmm.sim.replay import run as replay

    allocators = [known(name) for name in _words(arguments.allocator, "--allocator")]
    options = _options(arguments.option, allocators)
    lag_ns = parse_time(arguments.lag)
    sizes = _words(arguments.capacity, "--capacity")
    for size in sizes:
        parse_capacity(size, 1 << 40)
    if arguments.json:
        report.check_json_path(arguments.json)
    for name in allocators:  # whatever is wrong is said before the first trace is read
        make_model(name, None, options[name], lag_ns)
    found: list[dict[str, Any]] = []
    for name in arguments.traces:
        trace = _trace(name, arguments.device)
        unit = capacity.peak(trace)
        results, least = [], {}
        for allocator in allocators:
            own = options[allocator]
            runs = [
                replay(trace, allocator, parse_capacity(size, unit), lag_ns=lag_ns, **own)
                for size in sizes
            ]
            results += runs
            if arguments.capacity_search:
                least[allocator] = capacity.smallest(
                    trace, allocator, lag_ns=lag_ns, known=runs, **own
                )
        title = f"{Path(name).name}: {len(trace)} events, {trace.steps} steps"
        report.show(report.table(title, results, least if arguments.capacity_search else None))
        row: dict[str, Any] = {"trace": Path(name).name, "live_peak": unit}
        row["results"] = [result.as_dict() for result in results]
        if least:
            row["capacity_search"] = {key: vars(value) for key, value in least.items()}
        found.append(row)
    if arguments.json:
        report.write_json(arguments.json, {"format": "vmm-replay 1", "traces": found})
    return 0


def parse_capacity(text: str, unit: int) -> int | None:
    """Bytes, of a size, a multiple of `unit` like ``1.03x``, or None for ``unlimited``.

    Raises `vmm.errors.Invalid`.
    """
    if text == "unlimited":
        return None
    match = _NUMBER.fullmatch(text)
    scale = {**_UNITS, "x": unit}.get(match[2]) if match else None
    if match is None or scale is None or float(match[1]) * scale < 1:
        raise Invalid(f"--capacity takes sizes like 80GiB, 1.03x or unlimited, not {text!r}")
    return int(float(match[1]) * scale)


def parse_time(text: str) -> int:
    """Nanoseconds of a time like ``5ms``. Raises `vmm.errors.Invalid`."""
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in _TIMES:
        raise Invalid(f"--lag takes a time like 5ms (ns, us, ms, s), not {text!r}")
    return round(float(match[1]) * _TIMES[match[2]])


def parse_value(text: str) -> object:
    """An option's value: a number, a size in bytes like ``512MiB``, true, false, or the text."""
    if text in ("true", "false"):
        return text == "true"
    match = _NUMBER.fullmatch(text)
    if match is None or match[2] not in _UNITS:
        return text
    if "." not in match[1]:
        return int(match[1]) * _UNITS[match[2]]
    return int(float(match[1]) * _UNITS[match[2]]) if match[2] else float(match[1])


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise Invalid(f"{option} takes words with commas between them, not {text!r}")
    return words


def _options(texts: list[str], allocators: list[str]) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {name: {} for name in allocators}
    for text in texts:
        where, equals, value = text.partition("=")
        name, dot, key = where.partition(".")
        if not (name and dot and key and equals):
            raise Invalid(f"--option takes ALLOCATOR.KEY=VALUE, not {text!r}")
        if name not in options:
            raise Invalid(f"--option {text}: {name} is not one of --allocator")
        options[name][key] = parse_value(value)
    return options


def _trace(name: str, device: int | None) -> Trace:
    from vmm.sim import suite
    from vmm.sim.readers import read_any

    path = Path(name)
    if path.is_file():
        return read_any(name, device=device)
    if name in suite.SUITE:
        return suite.trace(name)
    known = ", ".join(suite.SUITE)
    raise Invalid(
        f"there is no file {name!r}, and no modelled trace of that name; known are {known}"
    )
