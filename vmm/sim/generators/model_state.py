# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What training holds from step to step: weights, gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Sequence

from vmm.sim.generators.layers import BF16, FP32
from vmm.sim.generators.tape import Tape


class ModelState:
    """Weights in bfloat16 one by one, and gradients in float32: one flat buffer, or one each.

    `trained` and `frozen` are elements per weight. `update` is the step of an optimizer that
    makes its state (a float32 copy of the weight and two moments) when it first runs.
    """

    def __init__(
        self, tape: Tape, trained: Sequence[int], frozen: Sequence[int] = (), flat: bool = True
    ) -> None:
        self.tape, self.trained = tape, list(trained)
        self.weights = [tape.alloc(count * BF16, "weight") for count in (*trained, *frozen)]
        gradients = [sum(trained)] if flat else self.trained
        self.gradients = [tape.alloc(count * FP32, "main gradient") for count in gradients]
        self.moments: list[int] = []

    @property
    def weight_bytes(self) -> int:
        return sum(map(self.tape.size, self.weights))

    def update(self) -> None:
        """Clips by the norm of all gradients, updates, and zeroes them."""
        tape = self.tape
        norms = [tape.alloc(FP32, "workspace") for _ in self.trained]
        for count in self.trained:
            tape.compute(moved=count * FP32)
        stacked = tape.alloc(len(norms) * FP32, "workspace")
        tape.free(*norms)
        total = tape.alloc(FP32, "workspace")
        tape.compute(moved=0)
        tape.free(stacked)
        if not self.moments:
            for count in self.trained:
                self.moments += [tape.alloc(count * FP32, "optimizer") for _ in range(3)]
        for count in self.trained:
            tape.compute(moved=count * (8 * FP32 + BF16))
        tape.free(total)
