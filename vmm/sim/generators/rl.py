# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reinforcement learning with rollout and training on the same device, in turns.

A rollout copies the weights, decodes a group of requests until each is complete, and drops the
copy. Training then runs on what was decoded. The rollout may have a stream of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from vmm.sim.generators.decoding import Decoder
from vmm.sim.generators.graph import Executor
from vmm.sim.generators.kv_cache import KvCache, Request
from vmm.sim.generators.layers import BF16, FP32, INT64, Shape, head, layer
from vmm.sim.generators.model_state import ModelState
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.stack import train
from vmm.sim.generators.tape import Tape
from vmm.sim.generators.varlen import weights
from vmm.sim.trace import Trace

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class RlParameters(Parameters):
    """Prompts and answers are log-normal, in tokens."""

    steps: int = setting(3, "rollouts, each with its training")
    layers: int = setting(16, "layers")
    hidden: int = setting(3072, "width of the model, elements")
    heads: int = setting(24, "attention heads")
    kv: int = setting(1024, "width of the keys, and of the values, elements")
    ffn: int = setting(8192, "width of the feed-forward, elements")
    vocabulary: int = setting(32000, "tokens known")
    requests: int = setting(48, "requests of a rollout")
    prompt: int = setting(512, "median prompt, tokens")
    answer: int = setting(1600, "median answer, tokens")
    sigma: float = setting(0.6, "of the logarithm of both", low=0, high=4)
    longest: int = setting(8192, "longest request, tokens", low=2)
    stride: int = setting(128, "tokens decoded between two looks at what is complete")
    parts: int = setting(8, "tensors of a cache, each with some layers")
    block: int = setting(64, "the room of a cache is a multiple, tokens")
    growth: float = setting(1.5, "factor by which the room of a cache grows", low=1, high=8)
    packed: int = setting(8192, "most tokens of a prefill or microbatch of several requests")
    two_streams: bool = setting(False, "the rollout on stream 1")

    def shape(self) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.ffn, self.vocabulary)


class _Job:
    def __init__(self, p: RlParameters) -> None:
        self.p, self.shape, self.tape = p, p.shape(), Tape("rl", p)
        self.random = np.random.default_rng(p.seed)
        self.state = ModelState(self.tape, weights(self.shape, p.layers))
        self.stream = 1 if p.two_streams else 0

    def rollout(self) -> list[int]:
        """The lengths of the requests when complete, tokens."""
        p, tape, stream = self.p, self.tape, self.stream
        tape.wait(stream, 0)
        copy = []
        for weight in self.state.weights:
            copy.append(tape.alloc(tape.size(weight), "rollout weight", stream))
            tape.compute(moved=2 * tape.size(weight), stream=stream)
        cache = KvCache(tape, stream, p.parts, p.layers * 2 * p.kv * BF16, p.block, p.growth)
        decoder = Decoder(tape, stream, self.shape, p.layers, cache)
        running = [self._request() for _ in range(p.requests)]
        done = []
        for batch in pack(running, lambda request: request.length, p.packed):
            decoder.prefill(batch)
        while running:
            decoder.decode(running, p.stride)
            tape.sync(stream)
            for request in running:
                if request.length >= request.final:
                    cache.drop(request)
                    done.append(request.final)
            running = [each for each in running if each.cache]
        tape.free(*copy)
        tape.wait(0, stream)
        return done

    def _request(self) -> Request:
        p = self.p
        prompt, answer = np.exp(p.sigma * self.random.standard_normal(2)) * (p.prompt, p.answer)
        length = int(np.clip(prompt, 1, p.longest // 2))
        return Request(length, int(min(length + max(answer, 1), p.longest)))

    def train(self, lengths: list[int]) -> None:
        p, tape, s = self.p, self.tape, self.shape
        executor = Executor(tape)
        for microbatch in pack(lengths, int, p.packed):
            rows = sum(microbatch)
            batch = tape.alloc(2 * rows * INT64, "input")
            old = tape.alloc(rows * FP32, "input")  # log-probabilities of the rollout
            x = tape.alloc(rows * p.hidden * BF16, "activation")
            tape.compute(moved=2 * rows * p.hidden * BF16)
            train(executor, [layer(s, rows)] * p.layers, head(s, rows), x, False)
            tape.free(batch, old)
        self.state.update()


def pack(items: Sequence[T], length: Callable[[T], int], limit: int) -> list[list[T]]:
    """Neighbors together while the sum of their lengths stays within the limit."""
    packs: list[list[T]] = []
    total = limit
    for item in items:
        if not packs or total + length(item) > limit:
            packs.append([])
            total = 0
        packs[-1].append(item)
        total += length(item)
    return packs


def generate(p: RlParameters) -> Trace:
    """The trace of the whole job."""
    job = _Job(p)
    for _ in range(p.steps):
        job.train(job.rollout())
        job.tape.sync()
        job.tape.step()
    return job.tape.trace()
