# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a run of an allocator must look like, kept in plain Python beside it."""

import contextlib
import random
from dataclasses import dataclass, field

from vmm import Allocator, OutOfMemory
from vmm.observe.api import record
from vmm.observe.recording import Recording

MIB = 1 << 20


@dataclass
class Model:
    """Live allocations by address, and the requested bytes that live after each event."""

    live: dict[int, int] = field(default_factory=dict)  # address -> requested
    curve: list[int] = field(default_factory=list)
    total: int = 0

    def alloc(self, address: int, size: int) -> None:
        self.live[address] = size
        self.total += size
        self.curve.append(self.total)

    def free(self, address: int) -> None:
        self.total -= self.live.pop(address)
        self.curve.append(self.total)


def random_run(
    seed: int,
    steps: int = 150,
    *,
    before: int = 12,
    min_size: int = 0,
    allocator: Allocator | None = None,
    **keys: object,
) -> tuple[Allocator, Model, Recording, Model]:
    """Allocations, frees and kernels at random: (allocator, model, recording, model at its start).

    The device is small, so that pages have to move and requests fail.
    """
    chance = random.Random(seed)
    settings = {"driver": "null", "device_bytes": 48 * MIB, **keys}
    one = allocator or Allocator(settings)
    model, time = Model(), 0

    def step() -> None:
        nonlocal time
        kind = chance.random()
        if kind < 0.1:
            one.clock_kernel(chance.choice((0, 7, 9)), chance.randrange(1, 4000))
        elif kind < 0.2:
            time += chance.randrange(1, 5000)
            one.clock_set(time)
        elif kind < 0.25 and model.live:
            one.record_stream(chance.choice(list(model.live)), chance.choice((7, 9)))
        elif kind < 0.55 and model.live:
            address = chance.choice(list(model.live))
            one.free(address)
            model.free(address)
        else:
            small = chance.random() < 0.4
            size = chance.randrange(1, 9000) if small else chance.randrange(MIB, 7 * MIB)
            with contextlib.suppress(OutOfMemory):
                model.alloc(one.alloc(size, stream=chance.choice((0, 0, 7))), size)

    for _ in range(before):
        step()
    start = Model(dict(model.live), [], model.total)
    model.curve = []
    with record(1 << 16, allocator=one, min_size=min_size) as recorder:
        for _ in range(steps):
            step()
    assert recorder.recording is not None
    return one, model, recorder.recording, start
