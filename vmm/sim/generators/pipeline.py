# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One rank of a pipeline with virtual stages: interleaved 1F1B of a dense transformer.

Each rank has several chunks of layers. The order is that of D. Narayanan et al., "Efficient
large-scale language model training on GPU clusters" (2021), section 2.2.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vmm.errors import Invalid
from vmm.sim.generators.graph import Executor
from vmm.sim.generators.layers import BF16, Shape, layer
from vmm.sim.generators.model_state import ModelState
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.stack import Stack
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace

COMPUTE, LINK = 0, 1


@dataclass(frozen=True, kw_only=True)
class PipelineParameters(Parameters):
    """Lengths of microbatches are log-normal around `sequence`, cut at twice that."""

    steps: int = setting(3, "steps")
    layers: int = setting(2, "layers of a chunk")
    chunks: int = setting(4, "chunks of this rank, the virtual stages")
    stages: int = setting(4, "ranks of the pipeline")
    rank: int = setting(1, "which of them this is", low=0)
    microbatches: int = setting(16, "microbatches of a step, a multiple of the ranks")
    hidden: int = setting(4096, "width of the model, elements")
    heads: int = setting(32, "attention heads")
    kv: int = setting(1024, "width of the keys, and of the values, elements")
    ffn: int = setting(11008, "width of the feed-forward, elements")
    sequence: int = setting(4096, "median tokens of a microbatch")
    sigma: float = setting(0.35, "of the logarithm of the length", low=0, high=4)
    p2p_sync: bool = setting(False, "the host waits for each activation that arrives")
    recompute: bool = setting(False, "recompute layers in the backward pass")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank >= self.stages:
            raise Invalid(f"rank is {self.rank}; it is below stages, {self.stages}")
        if self.microbatches % self.stages:
            raise Invalid(
                f"microbatches is {self.microbatches}; it is a multiple of stages, {self.stages}"
            )

    def shape(self) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.ffn)


def order(p: PipelineParameters) -> list[tuple[bool, int, int]]:
    """(backward, chunk, microbatch) in the order in which the rank runs them."""
    total, group = p.microbatches * p.chunks, p.stages * p.chunks
    warm = min((p.stages - p.rank - 1) * 2 + (p.chunks - 1) * p.stages, total)

    def item(number: int, backward: bool) -> tuple[bool, int, int]:
        chunk = number % group // p.stages
        micro = number // group * p.stages + number % p.stages
        return backward, p.chunks - 1 - chunk if backward else chunk, micro

    result = [item(number, False) for number in range(warm)]
    for number in range(total):
        if warm + number < total:
            result.append(item(warm + number, False))
        result.append(item(number, True))
    return result


class _Rank:
    def __init__(self, p: PipelineParameters) -> None:
        self.p, self.shape, self.tape = p, p.shape(), Tape("pipeline", p)
        self.random = np.random.default_rng(p.seed)
        layers = p.layers * p.chunks
        self.state = ModelState(self.tape, list(self.shape.layer_weights().values()) * layers)
        self.executor = Executor(self.tape)

    def step(self) -> None:
        p = self.p
        drawn = p.sequence * np.exp(p.sigma * self.random.standard_normal(p.microbatches))
        rows = [int(each) for each in np.clip(drawn, 1, 2 * p.sequence)]
        flying: dict[tuple[int, int], Stack] = {}
        for backward, chunk, micro in order(p):
            arrived = self._receive(rows[micro] * p.hidden * BF16)
            if backward:
                leaving = flying.pop((chunk, micro)).backward(arrived)
            else:
                ops = layer(self.shape, rows[micro])
                stack = flying[chunk, micro] = Stack(self.executor, [ops] * p.layers, p.recompute)
                leaving = stack.forward(arrived)
            self._send(leaving)
        self.state.update()
        self.tape.sync()
        self.tape.step()

    def _receive(self, size: int) -> int:
        arrived = self.tape.alloc(size, "communication", LINK)
        self.tape.transfer(size, LINK)
        self.tape.wait(COMPUTE, LINK)
        if self.p.p2p_sync:
            self.tape.sync(LINK)
        self.tape.record(arrived, COMPUTE)
        return arrived

    def _send(self, leaving: int) -> None:
        tape = self.tape
        tape.wait(LINK, COMPUTE)
        tape.record(leaving, LINK)
        tape.transfer(tape.size(leaving), LINK)
        tape.free(leaving)


def generate(p: PipelineParameters) -> Trace:
    """The trace of one rank."""
    rank = _Rank(p)
    for _ in range(p.steps):
        rank.step()
    return rank.tape.trace()
