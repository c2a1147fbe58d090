# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What statements of the mapping language do, in NumPy: the second opinion of the golden data.

Values are small integers held as float64: every dtype holds them or rounds them to integers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


def rounded(array: Array, dtype: str) -> Array:
    """The values after a cast, to nearest even, as float64."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return bits.view(np.float32).astype(np.float64).reshape(array.shape)
    return array.astype(dtype).astype(np.float64)


@dataclass
class Value:
    """A variable: values, dtype, dtype of the sources it is made of, and whether it was read."""

    array: Array
    dtype: str
    origin: str
    used: bool = False


@dataclass
class Env:
    """Names while a program runs. A name that was written hides the source tensor of that name."""

    inputs: dict[str, Value]
    exact: bool = False
    variables: dict[str, Value] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    def read(self, name: str) -> Value:
        value = self.peek(name)
        value.used = True
        return value

    def peek(self, name: str) -> Value:
        return self.variables[name] if name in self.variables else self.inputs[name]

    def write(self, name: str, array: Array, like: Value, dtype: str | None = None) -> None:
        if dtype is not None and not self.exact:
            array = rounded(array, dtype)
        self.variables[name] = Value(array, dtype or like.dtype, like.origin)

    def finals(self) -> dict[str, Value]:
        """The outputs where no destination is given: what nothing read and nothing deleted."""
        out = {n: v for n, v in self.inputs.items() if not v.used and n not in self.deleted}
        for name, value in self.variables.items():
            if not value.used:
                out.setdefault(name, value)
        return out


def concat(env: Env, sources: Sequence[str], target: str, axis: int, flip: bool = False) -> None:
    values = [env.read(s) for s in sources]
    arrays = [v.array.T if flip else v.array for v in values]
    env.write(target, np.concatenate(arrays, axis), values[0])


def split(env: Env, source: str, targets: Sequence[str], axis: int, flip: bool = False) -> None:
    value = env.read(source)
    array = value.array.T if flip else value.array
    for target, part in zip(targets, np.split(array, len(targets), axis), strict=True):
        env.write(target, part, value)


def permute(env: Env, source: str, target: str, perm: Sequence[int] | None = None) -> None:
    value = env.read(source)
    env.write(target, np.transpose(value.array, perm), value)


def cast(env: Env, source: str, target: str, dtype: str | None = None) -> None:
    """A copy under another name, cast if a dtype is given."""
    value = env.read(source)
    env.write(target, value.array, value, dtype)


def grouped(q: Array, k: Array, v: Array, heads: int, groups: int, axis: int) -> Array:
    """fused_qkv: the query heads of a group, its key head, its value head, group after group."""
    qs = np.split(q, groups, axis)
    ks, vs = np.split(k, groups, axis), np.split(v, groups, axis)
    return np.concatenate([p for g in range(groups) for p in (qs[g], ks[g], vs[g])], axis)


def ungrouped(f: Array, heads: int, groups: int, axis: int) -> tuple[Array, Array, Array]:
    per = heads // groups
    q, k, v = [], [], []
    for block in np.split(f, groups, axis):
        head = block.shape[axis] // (per + 2)
        a, b, c = np.split(block, [per * head, (per + 1) * head], axis)
        q.append(a)
        k.append(b)
        v.append(c)
    return np.concatenate(q, axis), np.concatenate(k, axis), np.concatenate(v, axis)


def ranked(parts: Sequence[Array], ranks: int, axis: int) -> Array:
    """fused_ffn, fused_qkv_old: rank r holds its share of every part, one after the other."""
    shares = [np.split(p, ranks, axis) for p in parts]
    return np.concatenate([s[r] for r in range(ranks) for s in shares], axis)


def unranked(f: Array, weights: Sequence[int], ranks: int, axis: int) -> list[Array]:
    """The parts, whose lengths are as ``weights``, of a tensor laid out for ``ranks``."""
    block = f.shape[axis] // ranks
    at = [block * sum(weights[: i + 1]) // sum(weights) for i in range(len(weights) - 1)]
    blocks = [np.split(b, at, axis) for b in np.split(f, ranks, axis)]
    return [np.concatenate([b[i] for b in blocks], axis) for i in range(len(weights))]
