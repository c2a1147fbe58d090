# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The CSV log of RAPIDS' memory manager: ``Thread,Time,Action,Pointer,Size,Stream``.

Actions are ``allocate``, ``free`` (also seen: ``deallocate``) and ``allocate failure``. Times are
those of the day, 14:21:19.998533, with a colon or a point before the fraction, or seconds since the
epoch. Logs that were cut out of another log lack the line of column names.
"""

from __future__ import annotations

import re

from vmm.errors import FormatError
from vmm.sim.readers.address_log import AddressLog
from vmm.sim.readers.text_lines import lines, number
from vmm.sim.trace import Trace

COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
_TIME = re.compile(r"(?:.*[ T])?(\d{1,3}):(\d\d):(\d\d)(?:[:.,](\d{1,9}))?")
_DAY_NS = 86_400 * 10**9
_EVENT = re.compile(rb"\d+,[\d:.,]+,(allocate|free|deallocate)\b[^,\n]*,[^,\n]*,\d+,[^,\n]*\n")


def matches(data: bytes) -> bool:
    """Whether the first line names the columns or is an event."""
    first = data[:4096].split(b"\n", 1)[0]
    names = {part.strip() for part in first.decode("ascii", "replace").split(",")}
    return {"Action", "Pointer", "Size"} <= names or _EVENT.match(first + b"\n") is not None


def read(data: bytes) -> Trace:
    """The trace in a log. Raises FormatError naming the line."""
    rows = lines(data)
    names = list(COLUMNS)
    if _EVENT.match(data) is None:
        names = [part.strip() for part in next(rows, (1, ""))[1].split(",")]
    missing = [name for name in COLUMNS if name not in names]
    if missing:
        raise FormatError(f"the columns {', '.join(missing)} are missing in line 1")
    log = AddressLog()
    threads: dict[str, int] = {}
    failures = last = days = 0
    for line, text in rows:
        parts = text.split(",")
        if len(parts) != len(names):
            raise FormatError(f"line {line} has {len(parts)} fields, not {len(names)}")
        row = dict(zip(names, (part.strip() for part in parts), strict=True))
        action = row["Action"].lower()
        if "fail" in action:
            failures += 1
            continue
        time = _time_in_ns(row["Time"], line) + days
        if time < last - _DAY_NS // 2:  # past midnight
            days += _DAY_NS
            time += _DAY_NS
        last = max(last, time)
        address = _pointer(row["Pointer"], line)
        size = number(row["Size"], "Size", line)
        stream = _pointer(row["Stream"], line)
        thread = threads.setdefault(row["Thread"], len(threads))
        if action in ("allocate", "alloc"):
            log.alloc(address, size, t_ns=last, stream=stream, thread=thread)
        elif action in ("free", "deallocate"):
            log.free(address, size, t_ns=last, stream=stream, thread=thread)
        else:
            raise FormatError(f"line {line}: Action is {action[:60]!r}, not allocate or free")
    notes = [f"{failures} failed allocations left out"] if failures else []
    return log.build("RMM log", notes=notes, threads=list(threads))


def _time_in_ns(text: str, line: int) -> int:
    seconds_of_epoch = re.fullmatch(r"(\d{1,10})(?:\.(\d{1,9}))?", text)
    if seconds_of_epoch:
        seconds, fraction = seconds_of_epoch.groups()
        return int(seconds) * 10**9 + int((fraction or "0").ljust(9, "0"))
    found = _TIME.fullmatch(text)
    if found is None:
        raise FormatError(f"line {line}: Time is {text[:60]!r}, not hours:minutes:seconds")
    hours, minutes, seconds, fraction = found.groups()
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return whole * 10**9 + int((fraction or "0").ljust(9, "0"))


def _pointer(text: str, line: int) -> int:
    """Pointers have 0x or are bare hexadecimal digits; streams may be small decimal numbers."""
    if text in ("(nil)", "", "default"):
        return 0
    if re.fullmatch(r"[0-9a-fA-F]{6,16}", text):
        return int(text, 16)
    return number(text, "a pointer", line)
