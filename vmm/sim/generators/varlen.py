# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A transformer trained on sequences of different lengths, one per microbatch, unpadded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vmm.sim.generators.graph import Executor
from vmm.sim.generators.layers import BF16, INT64, Shape, head, layer
from vmm.sim.generators.model_state import ModelState
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.stack import train
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class VarlenParameters(Parameters):
    """Lengths are log-normal, cut at `longest`."""

    steps: int = setting(12, "steps, one sequence each")
    layers: int = setting(28, "layers")
    hidden: int = setting(2304, "width of the model, elements")
    heads: int = setting(18, "attention heads")
    kv: int = setting(768, "width of the keys, and of the values, elements")
    ffn: int = setting(6144, "width of the feed-forward, elements")
    vocabulary: int = setting(32000, "tokens known")
    median: int = setting(3600, "median length, tokens")
    sigma: float = setting(0.7, "of the logarithm of the length", low=0, high=4)
    longest: int = setting(16384, "longest sequence, tokens")
    recompute: bool = setting(False, "recompute layers in the backward pass")

    def shape(self, rank: int = 0) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.ffn, self.vocabulary, rank)


def lengths(random: np.random.Generator, count: int, p: VarlenParameters) -> list[int]:
    """Lengths of sequences, tokens."""
    drawn = p.median * np.exp(p.sigma * random.standard_normal(count))
    return [int(each) for each in np.clip(drawn, 1, p.longest)]


def weights(s: Shape, layers: int) -> list[int]:
    """Elements of every weight of a model, without adapters."""
    return [*s.head_weights().values(), *list(s.layer_weights().values()) * layers]


def run(tape: Tape, state: ModelState, s: Shape, p: VarlenParameters) -> None:
    """All steps."""
    executor = Executor(tape)
    for rows in lengths(np.random.default_rng(p.seed), p.steps, p):
        tokens = tape.alloc(2 * rows * INT64, "input")  # and labels
        x = tape.alloc(rows * p.hidden * BF16, "activation")
        tape.compute(moved=2 * rows * p.hidden * BF16)
        train(executor, [layer(s, rows)] * p.layers, head(s, rows), x, p.recompute)
        state.update()
        tape.free(tokens)
        tape.sync()
        tape.step()


def generate(p: VarlenParameters) -> Trace:
    """The trace of full training."""
    tape = Tape("varlen", p)
    s = p.shape()
    run(tape, ModelState(tape, weights(s, p.layers)), s, p)
    return tape.trace()
