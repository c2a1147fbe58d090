# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Adversarial: every wave of buffers is larger, and leaves small tensors among them that stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PinnedGrowingParameters(Parameters):
    """A step is a wave. Sizes are uniform within their bounds."""

    steps: int = setting(12, "waves")
    buffers: int = setting(24, "buffers of a wave, dropped at its end")
    first: int = setting(128 * MIB, "least size of a buffer in the first wave, bytes")
    growth: float = setting(1.06, "factor on sizes from wave to wave", low=1, high=4)
    spread: float = setting(0.2, "sizes go up by this part at most", low=0, high=4)
    survivors: int = setting(5, "tensors of a wave that stay", low=0)
    low: int = setting(1 * MIB, "least size of what stays, bytes")
    high: int = setting(6 * MIB, "largest size of what stays, bytes")


def generate(p: PinnedGrowingParameters) -> Trace:
    """The trace; what stays is born between the buffers, evenly."""
    tape, random = Tape("pinned_growing", p), np.random.default_rng(p.seed)
    least = float(p.first)
    for _ in range(p.steps):
        wave = []
        for number in range(p.buffers):
            wave.append(tape.alloc(int(least * (1 + p.spread * random.random())), "buffer"))
            tape.compute(moved=tape.size(wave[-1]))
            before, after = (p.survivors * each // p.buffers for each in (number, number + 1))
            for _ in range(after - before):
                size = int(random.integers(p.low, max(p.low, p.high), endpoint=True))
                tape.alloc(size, "survivor")
        tape.free(*(wave[number] for number in random.permutation(p.buffers)))
        least *= p.growth
        tape.sync()
        tape.step()
    return tape.trace()
