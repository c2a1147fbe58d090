# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Serving with continuous batching: requests come, grow and leave one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vmm.sim.generators.decoding import Decoder
from vmm.sim.generators.kv_cache import KvCache, Request
from vmm.sim.generators.layers import BF16, Shape
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.tape import Tape
from vmm.sim.generators.varlen import weights
from vmm.sim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class InferenceParameters(Parameters):
    """Prompts are log-normal, answers geometric, in tokens."""

    steps: int = setting(200, "rounds, each decodes `stride` tokens")
    layers: int = setting(32, "layers")
    hidden: int = setting(4096, "width of the model, elements")
    heads: int = setting(32, "attention heads")
    kv: int = setting(1024, "width of the keys, and of the values, elements")
    ffn: int = setting(14336, "width of the feed-forward, elements")
    vocabulary: int = setting(32000, "tokens known")
    batch: int = setting(48, "requests at once")
    arrivals: float = setting(3.0, "new requests a round, mean", low=0)
    stride: int = setting(64, "tokens decoded in a round")
    prompt: int = setting(1500, "median prompt, tokens")
    sigma: float = setting(1.0, "of the logarithm of the prompt", low=0, high=4)
    answer: int = setting(700, "mean answer, tokens")
    longest: int = setting(16384, "longest request, tokens", low=2)
    parts: int = setting(8, "tensors of a cache, each with some layers")
    block: int = setting(64, "the room of a cache is a multiple, tokens")
    growth: float = setting(1.5, "factor by which the room of a cache grows", low=1, high=8)

    def shape(self) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.ffn, self.vocabulary)


def generate(p: InferenceParameters) -> Trace:
    """The trace of one server."""
    tape, random, s = Tape("inference", p), np.random.default_rng(p.seed), p.shape()
    for count in weights(s, p.layers):
        tape.alloc(count * BF16, "weight")
    token = p.layers * 2 * p.kv * BF16
    cache = KvCache(tape, 0, p.parts, token, p.block, p.growth)
    decoder = Decoder(tape, 0, s, p.layers, cache)
    running: list[Request] = []
    waiting = p.batch / 2
    for _ in range(p.steps):
        waiting += random.poisson(p.arrivals)
        while waiting >= 1 and len(running) < p.batch:
            waiting -= 1
            prompt = p.prompt * np.exp(p.sigma * random.standard_normal())
            length = int(np.clip(prompt, 1, p.longest // 2))
            final = min(length + int(random.geometric(1 / p.answer)), p.longest)
            running.append(Request(length, final))
            decoder.prefill(running[-1:])
        if running:
            decoder.decode(running, p.stride)
        tape.sync()
        for request in running:
            if request.length >= request.final:
                cache.drop(request)
        running = [each for each in running if each.cache]
        tape.step()
    return tape.trace()
