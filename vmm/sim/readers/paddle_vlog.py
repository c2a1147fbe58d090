# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paddle's verbose log of its allocators, of which lines hold

    Allocator instance: 0x1 Alloc 512 bytes, ptr = 0x2, place = Place(gpu:0)

Other lines are passed over. Paddle has an allocator for each stream of a device, so an instance is
read as a stream; the one with the most events is stream 0. Frees need not name their place.
"""

from __future__ import annotations

import re
from collections import Counter

from vmm.errors import FormatError
from vmm.sim.readers.address_log import AddressLog
from vmm.sim.readers.fields import chosen
from vmm.sim.readers.text_lines import lines
from vmm.sim.readers.torch_snapshot import EVENT_NS
from vmm.sim.trace import Trace

_EVENT = re.compile(
    r"Allocator\s+instance:\s*(?P<instance>0x[0-9a-fA-F]+|\d+)[\s,:]+(?P<action>Alloc|Free)\w*"
    r"\s+(?P<size>\d+)\s+bytes,?\s*ptr\s*=\s*(?P<address>0x[0-9a-fA-F]+|\(nil\)|0)"
    r"(?:,?\s*place\s*=\s*Place\((?P<place>\w+)(?::(?P<device>\d+))?\))?"
)
_CLOCK = re.compile(r"^[IWEF]\d{4,8} (\d\d):(\d\d):(\d\d)\.(\d{6})\s+(\d+) ")
_HALF_DAY_NS = 43_200 * 10**9


def matches(data: bytes) -> bool:
    """Whether the first MiB has an event."""
    return re.search(rb"Allocator\s+instance:", data[: 1 << 20]) is not None


def read(data: bytes, device: int | None = None) -> Trace:
    """The events of one device; host memory only where no device wrote. Raises FormatError."""
    found = [
        (text, event)
        for _, text in lines(data)
        if (event := _EVENT.search(text)) is not None and len(event["size"]) < 20
    ]
    places = {event["instance"]: event for _, event in found if event["place"]}
    if not places:
        raise FormatError("no line tells of an allocation and its place")
    host = all(event["place"] == "cpu" for event in places.values())
    homes = {
        instance: int((event["device"] or "0")[:9])
        for instance, event in places.items()
        if host or (event["place"] != "cpu" and "pinned" not in event["place"])
    }
    number = chosen(set(homes.values()), device)
    own = [row for row in found if homes.get(row[1]["instance"]) == number]
    instances = [name for name, _ in Counter(event["instance"] for _, event in own).most_common()]
    streams = {name: int(name, 0) if at else 0 for at, name in enumerate(instances)}
    log, clock = AddressLog(), _Clock()
    threads: dict[str, int] = {}
    for text, event in own:
        prefix = _CLOCK.match(text)
        address = 0 if event["address"] == "(nil)" else int(event["address"], 0)
        put = log.alloc if event["action"] == "Alloc" else log.free
        put(
            address,
            int(event["size"]),
            t_ns=clock.time(prefix),
            stream=streams[event["instance"]],
            thread=threads.setdefault(prefix[5], len(threads)) if prefix else 0,
        )
    others = len(found) - len(own)
    notes = [f"{others} events of other places left out"] if others else []
    return log.build("Paddle log", notes=notes, device=number, allocators=instances)


class _Clock:
    """Times of day as one time that does not run backwards; steps where there is none."""

    def __init__(self) -> None:
        self.last = self.days = 0

    def time(self, prefix: re.Match[str] | None) -> int:
        if prefix is None:
            self.last += EVENT_NS
            return self.last
        hours, minutes, seconds, micros = (int(prefix[part]) for part in range(1, 5))
        time = (((hours * 60 + minutes) * 60 + seconds) * 10**6 + micros) * 1000 + self.days
        if time < self.last - _HALF_DAY_NS:  # past midnight
            self.days += 2 * _HALF_DAY_NS
            time += 2 * _HALF_DAY_NS
        self.last = max(self.last, time)
        return self.last
