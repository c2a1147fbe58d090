# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""STAlloc's text traces: a line ``1 pointer size stream`` for an allocation, ``0 ...`` for a free.

Its profiler writes lines of text in between. ``Iteration Index : 3`` becomes a step mark.
"""

from __future__ import annotations

import re

from vmm.errors import FormatError
from vmm.sim.readers.address_log import AddressLog
from vmm.sim.readers.text_lines import lines, number
from vmm.sim.readers.torch_snapshot import EVENT_NS
from vmm.sim.trace import Trace

_POINTER = rb"(?:0x)?[0-9a-fA-F]+"
_LINE = re.compile(
    rb"^[01][ \t]+%b[ \t]+\d+(?:[ \t]+%b)?[ \t\r]*$" % (_POINTER, _POINTER), re.MULTILINE
)
_NOTE = re.compile(r"Iteration Index|micro-batch|Layer")


def matches(data: bytes) -> bool:
    """Whether an event is among the first lines."""
    return _LINE.search(data[: 1 << 16]) is not None


def read(data: bytes) -> Trace:
    """The trace in a log; events are 10 us apart. Raises FormatError naming the line."""
    log = AddressLog()
    for line, text in lines(data):
        if _NOTE.search(text):
            if text.startswith("Iteration Index") and text.split(":")[-1].strip().isdigit():
                log.step(t_ns=(line - 1) * EVENT_NS)
            continue
        parts = text.split()
        if not 3 <= len(parts) <= 4 or parts[0] not in ("0", "1"):
            raise FormatError(f"line {line} is not '1|0 pointer size stream': {text[:60]!r}")
        address, stream = (_pointer(part, line) for part in (parts[1], (*parts, "0")[3]))
        size = number(parts[2], "the size", line)
        put = log.alloc if parts[0] == "1" else log.free
        put(address, size, t_ns=(line - 1) * EVENT_NS, stream=stream)
    return log.build("STAlloc trace")


def _pointer(text: str, line: int) -> int:
    is_hexadecimal = re.fullmatch(r"[0-9]*[a-fA-F][0-9a-fA-F]*", text) is not None
    return int(text, 16) if is_hexadecimal else number(text, "a pointer", line)
