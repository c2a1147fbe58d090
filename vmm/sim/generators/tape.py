# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes a trace while a modelled program runs: a host clock and one queue per stream."""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np

from vmm.sim.generators.parameters import Parameters
from vmm.sim.trace import Trace

_A, _F, _R, _K, _S, _M = (ord(letter) for letter in "afrksm")


class Tape:
    """The events so far. Sizes are bytes as requested, times ns, streams small integers.

    The host runs ahead of the streams until a queue is full or it synchronizes, as it does with
    a real device, so that a free comes long before the last kernel that uses the memory.
    """

    def __init__(self, name: str, parameters: Parameters, kind: str = "generator") -> None:
        self._name, self._parameters, self._kind = name, parameters, kind
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []
        self._now = 0
        self._busy: dict[int, int] = {}
        self._queues: dict[int, deque[int]] = {}
        self._live: dict[int, tuple[int, int, int, int]] = {}  # size, stream, pool, tag
        self._count = 0
        self._tags = {"": 0}

    def alloc(self, size: int, tag: str, stream: int = 0, pool: int = 0) -> int:
        """A new allocation's id. A size of 0 counts as 1 byte: it holds what torch gives none."""
        number = self._tags.setdefault(tag, len(self._tags))
        id, self._count = self._count, self._count + 1
        known = self._live[id] = (max(int(size), 1), stream, pool, number)
        self._rows.append((self._now, _A, id, *known))
        self._now += self._parameters.call_ns
        return id

    def size(self, id: int) -> int:
        """The bytes of a live allocation."""
        return self._live[id][0]

    def free(self, *ids: int) -> None:
        for id in ids:
            self._rows.append((self._now, _F, id, *self._live.pop(id)))
            self._now += self._parameters.call_ns

    def record(self, id: int, stream: int) -> None:
        """The allocation is used on another stream (torch's record_stream)."""
        self._rows.append((self._now, _R, id, 0, stream, 0, 0))

    def kernel(self, ns: int, stream: int = 0) -> None:
        """A kernel of known duration."""
        queue = self._queues.setdefault(stream, deque())
        if len(queue) >= self._parameters.queue:
            self._now = max(self._now, queue.popleft())
        self._occupy(ns, stream)
        queue.append(self._busy[stream])
        self._now += self._parameters.launch_ns

    def compute(self, flops: float = 0, moved: float = 0, stream: int = 0) -> None:
        """A kernel that takes the longer of its arithmetic and its memory traffic in bytes."""
        p = self._parameters
        seconds = max(flops / p.flops, moved / p.memory_rate)
        self.kernel(max(p.kernel_ns, int(seconds * 1e9)), stream)

    def transfer(self, moved: float, stream: int = 0) -> None:
        """A collective that moves so many bytes over the links of the device."""
        p = self._parameters
        self.kernel(max(p.kernel_ns, int(moved / p.link_rate * 1e9)), stream)

    def wait(self, stream: int, other: int) -> None:
        """The stream does nothing until what is queued on the other is done."""
        gap = self._busy.get(other, 0) - max(self._now, self._busy.get(stream, 0))
        if gap > 0:
            self._occupy(gap, stream)

    def sync(self, stream: int = 0) -> None:
        """The host waits for a stream."""
        self._now = max(self._now, self._busy.get(stream, 0))
        self._queues.pop(stream, None)
        self._rows.append((self._now, _S, -1, 0, stream, 0, 0))

    def due(self, stream: int = 0) -> int:
        """The time at which what is queued on a stream so far will be done: an event, recorded."""
        return max(self._now, self._busy.get(stream, 0))

    def sync_until(self, due: int) -> None:
        """The host waits for an event."""
        self._now = max(self._now, due)

    def step(self) -> None:
        """The end of a step."""
        self._rows.append((self._now, _M, -1, 0, 0, 0, 0))

    def trace(self) -> Trace:
        """All events, checked, with the parameters and the names of the tags in the header."""
        columns = np.array(self._rows, dtype=np.int64).reshape(-1, 7).T
        header = {
            "source": f"vmm {self._kind} {self._name}",
            "device_capacity": self._parameters.device_bytes,
            "tags": list(self._tags),
            self._kind: self._name,
            "parameters": dataclasses.asdict(self._parameters),
        }
        return Trace(header, *columns).validate()

    def _occupy(self, ns: int, stream: int) -> None:
        self._busy[stream] = max(self._now, self._busy.get(stream, 0)) + ns
        self._rows.append((self._now, _K, -1, ns, stream, 0, 0))
