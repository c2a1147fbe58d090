# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Layers one behind the other, with or without recomputation in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from vmm.sim.generators.graph import Executor, Op, Values

Layers = Sequence[Sequence[Op]]


class Stack:
    """One pass through `layers`, each from `x` to `y`. Of the same size are all `x` and `y`.

    With `recompute` only the input of a layer is kept, and its forward runs again when its
    backward is due.
    """

    def __init__(self, executor: Executor, layers: Layers, recompute: bool = False) -> None:
        self._executor, self._layers, self._recompute = executor, layers, recompute
        self._saved: list[Values] = []
        self._size = 0

    def forward(self, x: int) -> int:
        """Takes over `x`, gives `y` of the last layer."""
        self._size = self._executor.tape.size(x)
        for ops in self._layers:
            keep = ("x", "y") if self._recompute else ("y",)
            values = self._executor.forward(ops, {"x": x}, keep, save=not self._recompute)
            x = values.pop("y")
            self._saved.append(values)
        return x

    def backward(self, gradient: int) -> int:
        """Takes over the gradient of `y`, gives that of the first `x`."""
        for ops in reversed(self._layers):
            values = self._saved.pop()
            if self._recompute:
                values = self._executor.forward(ops, values)
            found = self._executor.backward(ops, values, {"y": gradient}, {"x": self._size})
            gradient = found["x"]
        return gradient


def train(executor: Executor, layers: Layers, head: Sequence[Op], x: int, recompute: bool) -> None:
    """Forward, loss and backward of one microbatch; takes over `x`, leaves nothing live."""
    tape, size = executor.tape, executor.tape.size(x)
    stack = Stack(executor, layers, recompute)
    values = executor.forward(head, {"x": stack.forward(x)}, ("loss",))
    loss = values.pop("loss")
    seed = tape.alloc(tape.size(loss), "gradient", executor.stream)
    found = executor.backward(head, values, {"loss": seed}, {"x": size})
    tape.free(stack.backward(found["x"]), loss)
