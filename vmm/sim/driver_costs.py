# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What calls of a CUDA driver are taken to cost, for every model alike.

Round numbers to compare ways of working, not to predict a machine: this project has measured none
of them. They are those of ``kCudaCosts`` in csrc/drivers/driver_latency.cpp, which lacks the first
two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vmm.errors import Invalid


class Cost(NamedTuple):
    """Nanoseconds of one call; of one page of 2 MiB where `per_page`."""

    ns: int
    per_page: bool
    source: str


PAGE = 2 << 20

_VATTENTION = "vAttention (Prabhu et al., 2024): tens of microseconds for 2 MiB"
_LAUNCH = "taken to be like a launch: of the order of a microsecond"
_SEGMENT = (
    "assumed. By the ratios of GMLake (Guo et al., 2024, table 1: 2 GiB in pages of 2 MiB takes 115"
    " times as long) and the rows for pages here, 2 GiB take 670 us: large segments are counted low"
)
_FENCE = "assumed; the call alone, what the host waits for is not in it"

COSTS: dict[str, Cost] = {
    "cuda_malloc": Cost(100_000, False, _SEGMENT),
    "cuda_free": Cost(100_000, False, _SEGMENT),
    "reserve": Cost(20_000, False, _VATTENTION),
    "va_free": Cost(20_000, False, _VATTENTION),
    "create": Cost(30_000, False, _VATTENTION),
    "map": Cost(5_000, False, "vAttention: little beside the others"),
    "set_access": Cost(40_000, True, _VATTENTION),
    "unmap": Cost(35_000, True, _VATTENTION),
    "release": Cost(20_000, False, _VATTENTION),
    "event_create": Cost(1_000, False, _LAUNCH),
    "event_destroy": Cost(1_000, False, _LAUNCH),
    "event_record": Cost(1_000, False, _LAUNCH),
    "event_query": Cost(500, False, _LAUNCH),
    "stream_query": Cost(500, False, _LAUNCH),
    "stream_wait": Cost(1_000, False, _LAUNCH),
    "event_sync": Cost(5_000, False, _FENCE),
    "device_sync": Cost(10_000, False, _FENCE),
    "memory_info": Cost(10_000, False, "assumed"),
}

# What the native driver does not know: it has no call that gives a segment.
_SEGMENT_CALLS = ("cuda_malloc", "cuda_free")


def cost(call: str, count: int = 1, size: int = PAGE) -> int:
    """Nanoseconds of `count` calls, each over `size` bytes. Raises `vmm.errors.Invalid`."""
    if call not in COSTS:
        raise Invalid(f"there is no driver call {call!r}; known are {', '.join(COSTS)}")
    row = COSTS[call]
    return count * row.ns * (max(size // PAGE, 1) if row.per_page else 1)


def native_latency() -> str:
    """The table in the form of the allocator's key ``latency``."""
    rows = (f"{call}={row.ns}ns" for call, row in COSTS.items() if call not in _SEGMENT_CALLS)
    return ",".join(rows)


def modelled_ns(counters: Mapping[str, int]) -> int:
    """The driver time of an allocator, from the counters of its model.

    One that maps pages creates and releases them; any other asks for segments. A page larger
    than 2 MiB counts as one call only. A model that adds up ``driver_ns`` itself is believed.
    """
    if counters.get("driver_ns"):
        return counters["driver_ns"]
    got, gone, maps = counters["device_alloc"], counters["device_free"], counters.get("maps", 0)
    ns = cost("device_sync", counters["syncs"]) + cost("event_sync", counters["waits"])
    if not maps:
        return ns + cost("cuda_malloc", got) + cost("cuda_free", gone)
    ns += cost("create", got) + cost("map", maps) + cost("set_access", maps)
    return ns + cost("unmap", counters.get("unmaps", 0)) + cost("release", gone)
