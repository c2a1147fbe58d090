# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""An allocator whose need of memory is known: what is live, and `overhead` bytes."""

from __future__ import annotations

from typing import Any

from vmm.errors import Invalid
from vmm.sim.models.base import OutOfMemory

NAME = "tests.vmm.models.known_model:KnownModel"


class KnownModel:
    name = "known"
    last: KnownModel

    def __init__(self, capacity: int | None = None, *, overhead: int = 0, step: int = 0) -> None:
        self.capacity, self.overhead, self.per_step = capacity, overhead, step
        self.reserved = self.live = 0
        names = ("device_alloc", "device_free", "syncs", "retries", "steals", "waits", "driver_ns")
        self.counters = dict.fromkeys(names, 0)
        self.calls: list[tuple[Any, ...]] = []
        self._sizes: dict[int, int] = {}
        KnownModel.last = self

    def alloc(self, id: int, size: int, stream: int, pool: int) -> int:
        self.calls.append(("alloc", id))
        size = -(-size // 512) * 512
        need = self.live + size + self.overhead
        if self.capacity is not None and need > self.capacity:
            raise OutOfMemory(f"{need} bytes")
        self._sizes[id] = size
        self.live += size
        self.reserved = max(self.reserved, need)
        self.counters["steals"] += 1
        return 1 << 40

    def free(self, id: int) -> None:
        self.calls.append(("free", id))
        self.live -= self._sizes.pop(id)

    def record_stream(self, id: int, stream: int) -> None:
        if id not in self._sizes:
            raise Invalid(f"id {id} is not live")
        self.calls.append(("record", id, stream))

    def sync(self, stream: int) -> None:
        self.calls.append(("sync", stream))

    def kernel(self, stream: int, ns: int) -> None:
        self.calls.append(("kernel", stream, ns))

    def step(self) -> None:
        self.calls.append(("step",))

    def advance(self, t_ns: int) -> None:
        self.calls.append(("time", t_ns))
