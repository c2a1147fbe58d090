# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Fully sharded data-parallel training on three streams.

Stream 0 computes. On stream 1 the weights of a layer are gathered ahead of its use, on stream 2
gradients are reduced and scattered. Gathered buffers and gradients are freed some layers late, the
way the limit on gathers and the hold on reductions of real implementations work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from vmm.sim.generators.graph import Executor, Op, Values
from vmm.sim.generators.layers import BF16, FP32, INT64, Shape, head, layer
from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace

COMPUTE, GATHER, REDUCE = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class FsdpParameters(Parameters):
    """Each layer is one unit with a flat weight; embedding and head are another."""

    steps: int = setting(2, "steps")
    layers: int = setting(32, "layers")
    hidden: int = setting(4096, "width of the model, elements")
    heads: int = setting(32, "attention heads")
    kv: int = setting(1024, "width of the keys, and of the values, elements")
    ffn: int = setting(14336, "width of the feed-forward, elements")
    vocabulary: int = setting(32000, "tokens known")
    sequence: int = setting(8192, "tokens of a microbatch")
    ranks: int = setting(4, "devices that share the weights")
    prefetch: int = setting(1, "layers gathered ahead", low=0)
    delay: int = setting(2, "layers by which frees come late", low=0)
    limit_gathers: bool = setting(True, "the host waits for the use of what it frees late")
    recompute: bool = setting(True, "recompute layers in the backward pass")

    def shape(self) -> Shape:
        return Shape(self.hidden, self.heads, self.kv, self.ffn, self.vocabulary)


class _Gathered:
    """Full weights of the units, gathered in the order in which they will be used."""

    def __init__(self, tape: Tape, sizes: list[int], p: FsdpParameters) -> None:
        self._tape, self._sizes, self._p = tape, sizes, p
        self._ahead: deque[int] = deque()
        self._late: deque[tuple[int, int]] = deque()  # id, and when its use is over

    def each(self, order: list[int]) -> Iterator[int]:
        """Units in order; the weights of the one given are there until the next."""
        waiting = deque(order)
        for unit in order:
            while waiting and len(self._ahead) <= self._p.prefetch:
                self._gather(self._sizes[waiting.popleft()])
            self._tape.wait(COMPUTE, GATHER)
            yield unit
            used = self._ahead.popleft()
            self._tape.record(used, COMPUTE)
            self._late.append((used, self._tape.due(COMPUTE)))
            self._drop(self._p.delay)
        self._drop(0)

    def _gather(self, size: int) -> None:
        self._ahead.append(self._tape.alloc(size, "gathered weights", GATHER))
        self._tape.transfer(size, GATHER)

    def _drop(self, left: int) -> None:
        while len(self._late) > left:
            used, due = self._late.popleft()
            if self._p.limit_gathers:
                self._tape.sync_until(due)
            self._tape.free(used)


class _Rank:
    def __init__(self, p: FsdpParameters) -> None:
        self.p, self.tape, s = p, Tape("fsdp", p), p.shape()
        self.shape = s
        self.counts = [sum(s.layer_weights().values())] * p.layers
        self.counts.append(sum(s.head_weights().values()))
        shards = [-(-count // p.ranks) for count in self.counts]
        self.weights = [self.tape.alloc(each * FP32, "weight") for each in shards]
        self.moments: list[int] = []
        self.gathered = _Gathered(self.tape, [count * BF16 for count in self.counts], p)
        self.executor = Executor(self.tape)
        # Weight gradients of a unit go into its flat gradient, not into temporaries of their own.
        self.ops = [_flat(layer(s, p.sequence))] * p.layers
        self.head = _flat(head(s, p.sequence))

    def step(self) -> None:
        p, tape = self.p, self.tape
        size = p.sequence * p.hidden * BF16
        tokens = tape.alloc(2 * p.sequence * INT64, "input")
        x = tape.alloc(size, "activation")
        saved: list[Values] = []
        shards: list[int] = []
        held: deque[int] = deque()
        keep = ("x", "y") if p.recompute else ("y",)
        for unit in self.gathered.each(list(range(p.layers))):
            values = self.executor.forward(self.ops[unit], {"x": x}, keep, not p.recompute)
            x = values.pop("y")
            saved.append(values)
        gradient = 0
        for unit in self.gathered.each(list(range(p.layers, -1, -1))):
            full = tape.alloc(self.counts[unit] * BF16, "unsharded gradient")
            if unit == p.layers:
                values = self.executor.forward(self.head, {"x": x}, ("loss",))
                loss = values.pop("loss")
                start = {"loss": tape.alloc(FP32, "gradient")}
                found = self.executor.backward(self.head, values, start, {"x": size})
                tape.free(loss)
            else:
                values = saved.pop()
                if p.recompute:
                    values = self.executor.forward(self.ops[unit], values)
                found = self.executor.backward(self.ops[unit], values, {"y": gradient}, {"x": size})
            gradient = found["x"]
            shards.append(self._reduce(full, unit))
            held.append(full)
            if len(held) > p.delay:
                tape.free(held.popleft())
        tape.free(*held, gradient, tokens)
        self._update(shards)

    def _reduce(self, full: int, unit: int) -> int:
        tape, size = self.tape, self.counts[unit] * BF16
        tape.wait(REDUCE, COMPUTE)
        tape.record(full, REDUCE)
        shard = tape.alloc(-(-size // self.p.ranks), "gradient shard", REDUCE)
        tape.transfer(size, REDUCE)
        wide = tape.alloc(tape.size(shard) * 2, "main gradient", REDUCE)
        tape.compute(moved=tape.size(wide) * 1.5, stream=REDUCE)
        tape.free(shard)
        return wide

    def _update(self, shards: list[int]) -> None:
        tape = self.tape
        tape.wait(COMPUTE, REDUCE)
        if not self.moments:
            for weight in self.weights:
                self.moments += [tape.alloc(tape.size(weight), "optimizer") for _ in range(2)]
        for weight in self.weights:
            tape.compute(moved=7 * tape.size(weight))
        for shard in shards:
            tape.record(shard, COMPUTE)
        tape.free(*shards)
        tape.sync()
        tape.step()


def _flat(ops: list[Op]) -> list[Op]:
    return [replace(op, weight=0, flops=op.flops * (2 if op.weight else 1)) for op in ops]


def generate(p: FsdpParameters) -> Trace:
    """The trace of one rank."""
    rank = _Rank(p)
    for _ in range(p.steps):
        rank.step()
    return rank.tape.trace()
