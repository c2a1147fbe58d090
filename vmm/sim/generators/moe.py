# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One rank of mixture-of-experts training: pipeline and expert parallel, 1F1B."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vmm.errors import Invalid
from vmm.sim.generators.graph import Executor
from vmm.sim.generators.layers import BF16, Shape
from vmm.sim.generators.model_state import ModelState
from vmm.sim.generators.moe_layer import expert_weights, moe_layer
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.routing import Routing
from vmm.sim.generators.stack import Stack
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class MoeParameters(Parameters):
    """A stage in the middle of a pipeline: it receives and sends activations."""

    steps: int = setting(3, "steps")
    layers: int = setting(5, "layers of this stage")
    hidden: int = setting(4096, "width of the model, elements")
    heads: int = setting(32, "attention heads")
    kv: int = setting(1024, "width of the keys, and of the values, elements")
    expert: int = setting(1536, "width of an expert, elements")
    experts: int = setting(64, "experts of a layer, on all ranks")
    local: int = setting(8, "experts of a layer on this rank")
    top: int = setting(6, "experts that a token is sent to")
    sequence: int = setting(8192, "tokens of a microbatch")
    in_flight: int = setting(4, "microbatches whose activations are held at once")
    microbatches: int = setting(8, "microbatches of a step")
    recompute: bool = setting(False, "recompute layers in the backward pass")
    grouped: bool = setting(False, "one grouped product for all local experts")
    side_stream: bool = setting(False, "all-to-all on stream 1")
    count_sync: bool = setting(True, "the host reads the tokens per expert in each layer")
    gamma: float = setting(2.0, "shape of the distribution of popularity", low=0.1)
    drift: float = setting(0.15, "sigma of the factor on popularity, per step", low=0, high=4)
    imbalance: float = setting(0.3, "of the tokens that reach this rank, ±", low=0, high=0.99)
    concentration: float = setting(0.3, "of the split, per expert and popularity", low=0.001)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, limit in (("local", "experts"), ("top", "experts"), ("heads", "hidden")):
            if getattr(self, name) > getattr(self, limit):
                raise Invalid(
                    f"{name} is {getattr(self, name)}; it is at most {limit}, "
                    f"{getattr(self, limit)}"
                )

    def shape(self) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.expert)


class _Rank:
    def __init__(self, p: MoeParameters) -> None:
        self.p, self.shape, self.tape = p, p.shape(), Tape("moe", p)
        self.routing = Routing(
            np.random.default_rng(p.seed),
            p.layers,
            p.local,
            p.gamma,
            p.drift,
            p.imbalance,
            p.concentration,
        )
        router = {"norm 2": p.hidden, "router": p.hidden * p.experts}
        layer = [*(self.shape.attention_weights() | router).values()]
        layer += expert_weights(self.shape, p.local, p.grouped)
        self.state = ModelState(self.tape, layer * p.layers)
        self.executor = Executor(self.tape, link=1 if p.side_stream else 0)
        self.flying: list[Stack] = []
        self.size = p.sequence * p.hidden * BF16

    def forward(self) -> None:
        p, tape = self.p, self.tape
        layers = []
        for number in range(p.layers):
            split = self.routing.split(number, p.sequence * p.top)
            layers.append(
                moe_layer(self.shape, p.sequence, p.experts, p.top, split, p.grouped, p.count_sync)
            )
        received = tape.alloc(self.size, "communication")
        tape.transfer(self.size)
        stack = Stack(self.executor, layers, p.recompute)
        sent = stack.forward(received)
        tape.transfer(self.size)
        tape.free(sent)
        self.flying.append(stack)

    def backward(self) -> None:
        gradient = self.tape.alloc(self.size, "communication")
        self.tape.transfer(self.size)
        done = self.flying.pop(0).backward(gradient)
        self.tape.transfer(self.size)
        self.tape.free(done)

    def step(self) -> None:
        p = self.p
        warm = min(p.in_flight, p.microbatches) - 1
        for _ in range(warm):
            self.forward()
        for _ in range(p.microbatches - warm):
            self.forward()
            self.backward()
        for _ in range(warm):
            self.backward()
        self.state.update()
        self.routing.step()
        self.tape.sync()
        self.tape.step()


def generate(p: MoeParameters) -> Trace:
    """The trace of one rank."""
    rank = _Rank(p)
    for _ in range(p.steps):
        rank.step()
    return rank.tape.trace()
