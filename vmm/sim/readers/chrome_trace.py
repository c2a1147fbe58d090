# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What ``torch.profiler`` exports with ``profile_memory=True``: Chrome's trace format in JSON.

Memory events are instants named ``[memory]`` with the arguments ``Addr``, ``Bytes`` (negative: a
free), ``Total Allocated``, ``Device Type`` (0 host, 1 CUDA, ...) and ``Device Id``.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from vmm.errors import FormatError
from vmm.sim.readers.address_log import AddressLog
from vmm.sim.readers.fields import chosen, listed
from vmm.sim.trace import Trace

_HOST = 0


def matches(data: Any) -> bool:
    """Whether parsed JSON is a Chrome trace."""
    if isinstance(data, dict):
        return "traceEvents" in data
    return isinstance(data, list) and bool(data) and isinstance(data[0], dict) and "ph" in data[0]


def read(data: Any, device: int | None = None) -> Trace:
    """The events of one accelerator, or of the host where there is none (its number is -1).

    A step of the profiler (``ProfilerStep#3``) becomes a step mark. Raises FormatError.
    """
    events = listed(data["traceEvents"] if isinstance(data, dict) else data, "traceEvents")
    found: list[tuple[int, int, int, int]] = []  # time, device, address, bytes
    steps: list[int] = []
    for number, event in enumerate(events):
        if not isinstance(event, dict):
            raise FormatError(f"event {number} is a {type(event).__name__}, not a table")
        name = event.get("name")
        if name == "[memory]":
            found.append(_memory(number, event))
        elif isinstance(name, str) and name.startswith("ProfilerStep#") and _is_host_span(event):
            steps.append(_time(number, event))
    if not found:
        raise FormatError("there is no [memory] event; profile with profile_memory=True")
    have = {row[1] for row in found}
    host_too = len(have) > 1 and -1 in have
    own = chosen(have - {-1} if host_too and device is None else have, device)
    log = AddressLog()
    rows = [row for row in found if row[1] == own]
    marks = [(time, own, -1, 0) for time in steps]
    # Stable: events of the same time stay in the order of the file.
    for time, _, address, size in sorted(marks + rows, key=lambda row: row[0]):
        if address < 0:
            log.step(t_ns=time)
        elif size < 0:
            log.free(address, -size, t_ns=time)
        else:
            log.alloc(address, size, t_ns=time)
    others = len(found) - len(rows)
    notes = [f"{others} events of other devices left out"] if others else []
    return log.build("torch profiler", notes=notes, device=own)


def _is_host_span(event: dict[Any, Any]) -> bool:
    """The same step is shown once more on the device."""
    return event.get("ph") == "X" and event.get("cat") in (None, "user_annotation", "cpu_op")


def _memory(number: int, event: dict[Any, Any]) -> tuple[int, int, int, int]:
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        raise FormatError(f"event {number} has no args")
    kind = _whole(number, arguments, "Device Type", 0)
    index = _whole(number, arguments, "Device Id", 0)
    device = -1 if kind == _HOST else max(index, 0)
    address = _whole(number, arguments, "Addr", None)
    return (
        _time(number, event),
        device,
        address % (1 << 64),
        _whole(number, arguments, "Bytes", None),
    )


def _whole(number: int, arguments: dict[Any, Any], name: str, default: int | None) -> int:
    value = arguments.get(name, default)
    if isinstance(value, str) and len(value) < 24:
        with contextlib.suppress(ValueError):
            value = int(value, 0)
    if type(value) is not int or abs(value) >= 1 << 64:
        raise FormatError(f"{name} of event {number} is {str(value)[:60]!r}, not a number")
    return value


def _time(number: int, event: dict[Any, Any]) -> int:
    """The time in ns; the file has it in us, with a fraction."""
    value = event.get("ts")
    if isinstance(value, str) and len(value) < 40:
        with contextlib.suppress(ValueError):
            value = float(value)
    if not isinstance(value, int | float) or not 0 <= value < 1 << 53 or math.isnan(value):
        raise FormatError(f"ts of event {number} is {str(value)[:60]!r}, not a time in us")
    return round(value * 1000)
