# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A random program under construction: statements, tensors, shards, and its case as plain data."""

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from math import prod
from typing import Any

import numpy as np

from tests.flexckpt.golden.numpy_language import Array, Env, Value, rounded

Shards = list[tuple[tuple[int, ...], tuple[int, ...]]]
LISTED = 48  # values of larger shards are kept as a hash


def grid(shape: Sequence[int], cuts: dict[int, list[int]]) -> Shards:
    """Shards ``(offset, shape)`` of a tensor cut at the given places of the given axes."""
    ranges = []
    for axis, n in enumerate(shape):
        at = [0, *cuts.get(axis, []), n]
        ranges.append(list(pairwise(at)))
    return [(tuple(a for a, _ in box), tuple(b - a for a, b in box)) for box in product(*ranges)]


def even(shape: Sequence[int], axis: int, parts: int) -> Shards:
    step = shape[axis] // parts
    return grid(shape, {axis: [step * i for i in range(1, parts)]})


def random_shards(rng: random.Random, shape: Sequence[int]) -> Shards | None:
    """Shards over one to four ranks: even or not, on one or two axes, sometimes with replicas."""
    axes = [a for a, n in enumerate(shape) if n > 1]
    if not axes or rng.random() < 0.35:
        return None
    chosen = rng.sample(axes, 2) if len(axes) > 1 and rng.random() < 0.3 else [rng.choice(axes)]
    cuts = {}
    for axis in chosen:
        n = shape[axis]
        parts = rng.randint(2, min(n, 2 if len(chosen) == 2 else 4))
        if n % parts == 0 and rng.random() < 0.5:
            cuts[axis] = [n // parts * i for i in range(1, parts)]
        else:
            cuts[axis] = sorted(rng.sample(range(1, n), parts - 1))
    shards = grid(shape, cuts)
    if len(shards) == 2 and rng.random() < 0.2:
        shards = shards * 2
    return shards


def fingerprint(array: Array) -> list[int] | str:
    """The values in C order, or their hash where they are many."""
    flat = np.ascontiguousarray(array).reshape(-1)
    whole = flat.astype(np.int64)
    if not np.array_equal(whole, flat):
        raise ValueError("values of golden data are integers")
    if whole.size <= LISTED:
        return [int(v) for v in whole]
    return hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()


@dataclass
class Program:
    """Statements with their effect in NumPy, source tensors, and names of destinations."""

    rng: random.Random
    reverse: bool = False
    has_dest: bool = True
    statements: list[str] = field(default_factory=list)
    shards: dict[str, Shards | None] = field(default_factory=dict)
    outputs: dict[str, Shards | str | None] = field(default_factory=dict)
    kept: dict[str, tuple[int, ...]] = field(default_factory=dict)
    steps: list[Callable[[Env], None]] = field(default_factory=list)
    risks: set[str] = field(default_factory=set)
    blocks: list[str] = field(default_factory=list)
    env: Env = field(default_factory=lambda: Env({}))
    start: int = 0
    starts: dict[str, int] = field(default_factory=dict)

    def source(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str = "float32",
        shards: Shards | str | None = "random",
    ) -> str:
        count = prod(shape)
        first = self.start if dtype == "float32" else self.start % 100  # 16 bits hold few integers
        array = np.arange(first, first + count, dtype=np.float64).reshape(tuple(shape))
        self.start += count
        self.starts[name] = first
        self.env.inputs[name] = Value(rounded(array, dtype), dtype, dtype)
        self.shards[name] = random_shards(self.rng, shape) if isinstance(shards, str) else shards
        return name

    def step(self, text: str, run: Callable[[Env], None]) -> None:
        """A statement and what it does; it is done at once, so that shapes are known."""
        self.statements.append(text)
        self.steps.append(run)
        run(self.env)

    def output(self, name: str, shards: Shards | str | None = "random") -> None:
        self.outputs[name] = shards

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.env.peek(name).array.shape)

    def forward_case(self) -> dict[str, Any]:
        source = {
            n: _described(v, self.shards[n], self.starts[n]) for n, v in self.env.inputs.items()
        }
        finals = self.env.finals()
        if not self.has_dest:
            expect = {n: [fingerprint(v.array)] for n, v in finals.items()}
            dest = {n: _described(v, None) for n, v in finals.items()}
            return self._case(source, None, expect, {n: d["shape"] for n, d in dest.items()})
        dest, expect = {}, {}
        for name, wish in self.outputs.items():
            value = self.env.peek(name)
            shards = random_shards(self.rng, value.array.shape) if wish == "random" else wish
            dest[name] = _described(value, shards)
            expect[name] = _cut(value.array, shards)
        for name, shape in self.kept.items():
            dest[name] = {"shape": list(shape), "dtype": "float32"}
        return self._case(source, dest, expect)

    def reverse_case(self) -> dict[str, Any]:
        """The same statements run backwards: outputs become sources, inputs destinations."""
        index = Env({}, exact=True)
        at = 0
        for name, value in self.env.inputs.items():
            count = value.array.size
            numbers = np.arange(at, at + count, dtype=np.float64).reshape(value.array.shape)
            index.inputs[name] = Value(numbers, value.dtype, value.origin)
            at += count
        for run in self.steps:
            run(index)
        flat = np.full(at, -1.0)
        source, start = {}, 0
        for name, wish in self.outputs.items():
            where = index.peek(name)
            count = where.array.size
            if where.dtype != "float32":
                start %= 100
            ids = np.arange(start, start + count, dtype=np.float64)
            values = rounded(ids.reshape(where.array.shape), where.dtype)
            shape = where.array.shape
            shards = random_shards(self.rng, shape) if wish == "random" else wish
            source[name] = _described(Value(values, where.dtype, ""), shards, start)
            flat[where.array.astype(np.int64).reshape(-1)] = values.reshape(-1)
            start += count
        dest, expect, at = {}, {}, 0
        for name, value in self.env.inputs.items():
            if name in self.env.deleted:
                at += value.array.size
                continue
            part = flat[at : at + value.array.size].reshape(value.array.shape)
            at += value.array.size
            if (part < 0).any():
                raise ValueError(f"a block of {self.blocks} cannot be reversed: {name}")
            shards = self.shards[name]
            dest[name] = _described(value, shards)
            expect[name] = _cut(rounded(part, value.dtype), shards)
        return self._case(source, dest, expect)

    def _case(
        self,
        source: dict[str, Any],
        dest: dict[str, Any] | None,
        expect: dict[str, Any],
        shapes: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        case = {
            "blocks": self.blocks,
            "statements": self.statements,
            "reverse": self.reverse,
            "source": source,
            "dest": dest,
            "expect": expect,
        }
        if shapes is not None:
            case["expect_shapes"] = shapes
        if self.kept:
            case["kept"] = sorted(self.kept)
        return case


def _described(value: Value, shards: Shards | None, start: int | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"shape": list(value.array.shape), "dtype": value.dtype}
    if start is not None:
        out["start"] = start
    if shards is not None:
        out["shards"] = [[list(o), list(s)] for o, s in shards]
    return out


def _cut(array: Array, shards: Shards | None) -> list[list[int] | str]:
    if shards is None:
        return [fingerprint(array)]
    boxes = [tuple(slice(a, a + n) for a, n in zip(o, s, strict=True)) for o, s in shards]
    return [fingerprint(array[box]) for box in boxes]
