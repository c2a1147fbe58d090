# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random checkpoints of several ranks: what each rank saves, and what NumPy expects."""

import random
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from tests.flexckpt.golden import blocks as b
from tests.flexckpt.golden import layout_blocks as lb
from tests.flexckpt.golden.numpy_language import Array, Env, Value, rounded
from tests.flexckpt.golden.program import Program, Shards, fingerprint, grid

STATES = (".w_0", ".moment1_0", ".moment2_0")
SCALARS = (".beta1_pow_acc_0", ".beta2_pow_acc_0")
RANKS = 4


class Case:
    """A case as plain data, and the arrays behind it."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        self.rng = rng
        self.kind = kind
        self.arrays: dict[str, Array] = {}
        self.tensors: dict[str, Any] = {}
        self.ranks: list[list[dict[str, Any]]] = [[] for _ in range(RANKS)]
        self.statements: list[str] | None = None
        self.expect: dict[str, Array] = {}
        self.dtypes: dict[str, str] = {}
        self.risks: set[str] = set()

    def tensor(self, name: str, shape: tuple[int, ...], dtype: str, start: int) -> None:
        values = np.arange(start, start + prod(shape), dtype=np.float64).reshape(shape)
        self.arrays[name] = rounded(values, dtype)
        self.tensors[name] = {"shape": list(shape), "dtype": dtype, "start": start}

    def save(self, name: str, boxes: Shards, cuts: list[list[int]] | None = None) -> None:
        """Hand out shards to ranks; ``cuts`` are where flat ranges of each box begin and end."""
        rank = 0
        for k, (offset, shape) in enumerate(boxes):
            ranges = [None] if cuts is None else list(zip(cuts[k], cuts[k][1:], strict=False))
            for part in ranges:
                if part is not None and part[0] == part[1]:
                    continue  # Paddle leaves empty ranges out
                item: dict[str, Any] = {"key": name, "offset": list(offset), "shape": list(shape)}
                if part is not None:
                    item["range"] = list(part)
                self.ranks[rank % RANKS].append(item)
                rank += 1

    def data(self) -> dict[str, Any]:
        targets = {}
        for name, array in self.expect.items():
            targets[name] = {"shape": list(array.shape), "dtype": self.dtypes[name]}
        return {
            "kind": self.kind,
            "tensors": self.tensors,
            "ranks": self.ranks,
            "statements": self.statements,
            "targets": targets,
            "expect": {name: fingerprint(array) for name, array in self.expect.items()},
        }

    def expect_as_saved(self) -> None:
        for name, array in self.arrays.items():
            self.expect[name] = array
            self.dtypes[name] = self.tensors[name]["dtype"]


def values_of(case: dict[str, Any], item: dict[str, Any]) -> Array:
    """The values of a shard of a case: its box, or the range of it."""
    entry = case["tensors"][item["key"]]
    shape = tuple(entry["shape"])
    whole = np.arange(entry["start"], entry["start"] + prod(shape), dtype=np.float64)
    whole = rounded(whole.reshape(shape), entry["dtype"])
    box = tuple(slice(a, a + n) for a, n in zip(item["offset"], item["shape"], strict=True))
    part = whole[box]
    return part.reshape(-1)[slice(*item["range"])] if "range" in item else part


def _boxes(rng: random.Random, shape: tuple[int, ...], most: int = 4) -> Shards:
    axes = [a for a, n in enumerate(shape) if n > 1]
    if not axes or most == 1:
        return grid(shape, {})
    axis = rng.choice(axes)
    parts = rng.randint(1, min(shape[axis], most))
    return grid(shape, {axis: sorted(rng.sample(range(1, shape[axis]), parts - 1))})


def _cuts(rng: random.Random, shape: tuple[int, ...], parts: int, rows: bool) -> list[int]:
    """Places of cuts of a flattened box: anywhere, or only between rows."""
    size = prod(shape)
    step = prod(shape[1:]) if rows and shape else 1
    places = range(0, size + 1, max(step, 1))
    return [0, *sorted(rng.choice(places) for _ in range(parts - 1)), size]


def _shape(rng: random.Random, ndim: int) -> tuple[int, ...]:
    return tuple(rng.choice((1, 2, 3, 4, 5, 6)) for _ in range(ndim))


def boxes(case: Case) -> None:
    """Weights in boxes: even, uneven, in several dtypes, and one held by two ranks."""
    for i in range(3):
        dtype = case.rng.choice(("float32", "bfloat16", "float16", "int64", "int32"))
        name, shape = f"layer.{i}.weight", _shape(case.rng, case.rng.choice((1, 2, 3)))
        case.tensor(name, shape, dtype, 10 * i)
        shards = _boxes(case.rng, shape, 3)
        case.save(name, shards if len(shards) > 1 else shards * case.rng.choice((1, 2)))
    case.expect_as_saved()


def flattened(case: Case) -> None:
    """Optimizer states cut as flat ranges inside the boxes of their weights; scalars whole."""
    rng = case.rng
    ndim = rng.choice((1, 1, 2, 2, 2, 3))
    shape = _shape(rng, ndim)
    rows = rng.random() < 0.3
    shards = _boxes(rng, shape, 2)
    case.tensor("net.w", shape, "bfloat16", 0)
    case.save("net.w", shards)
    cuts = [_cuts(rng, box, 4 // len(shards), rows) for _, box in shards]
    for k, state in enumerate(STATES):
        case.tensor("net.w" + state, shape, "float32", 100 * (k + 1))
        case.save("net.w" + state, shards, cuts)
    for k, state in enumerate(SCALARS):
        case.tensor("net.w" + state, (1,), "float32", 7 + k)
        case.save("net.w" + state, grid((1,), {}))
    if ndim > 1 and not rows:
        case.risks.add("flat_cut_in_a_row")
    if ndim > 2:
        case.risks.add("flat_rank_3")
    case.expect_as_saved()


def _mapped(case: Case, block: Callable[[Program, str], None], casts: bool = False) -> None:
    """Weights and their states under a random program; states follow it without casts."""
    rng = case.rng
    while True:
        program = Program(random.Random(rng.random()))
        block(program, "m")
        cast = any("dtype" in s for s in program.statements)
        shadows = any(n in program.env.inputs for n in program.env.variables)
        if cast == casts and not shadows and not program.kept and not program.env.deleted:
            break
    case.statements = program.statements
    sizes = [v.array.size for v in program.env.inputs.values()]
    with_states = rng.random() < 0.6 and max(sizes) <= 200
    for k, state in enumerate(("", *STATES) if with_states else ("",)):
        inputs = {}
        for i, (name, value) in enumerate(program.env.inputs.items()):
            dtype = value.dtype if state == "" else "float32"
            shape = tuple(value.array.shape)
            case.tensor(name + state, shape, dtype, 1000 * k + 10 * i)
            inputs[name] = Value(case.arrays[name + state], dtype, dtype)
            boxes = program.shards[name] or grid(shape, {})
            case.save(name + state, list(dict.fromkeys(boxes)))
        env = Env(inputs, exact=state != "")
        for run in program.steps:
            run(env)
        for name in program.outputs:
            value = env.peek(name)
            case.expect[name + state] = value.array
            case.dtypes[name + state] = value.dtype if state == "" else "float32"
    if with_states:
        for state in SCALARS:
            for name in program.env.inputs:
                case.tensor(name + state, (1,), "float32", 7)
                case.save(name + state, grid((1,), {}))
            for name in program.outputs:
                case.expect[name + state] = np.array([7.0])
                case.dtypes[name + state] = "float32"
    if casts and with_states:
        case.risks.add("cast_hits_state")
    case.risks |= program.risks
    if _fans_out(program, by_tensor=False):
        case.risks.add("fan_out")
    if with_states and _fans_out(program, by_tensor=True):
        case.risks.add("scalar_fan_out")


def _fans_out(program: Program, by_tensor: bool) -> bool:
    """Whether some element of a source, or some source, goes to several places."""
    index, at = Env({}, exact=True), 0
    for name, value in program.env.inputs.items():
        shape, size = value.array.shape, value.array.size
        numbers = np.full(shape, at) if by_tensor else np.arange(at, at + size).reshape(shape)
        index.inputs[name] = Value(numbers, value.dtype, value.origin)
        at += 1 if by_tensor else size
    for run in program.steps:
        run(index)
    parts = [index.peek(n).array.reshape(-1) for n in program.outputs]
    used = np.concatenate([np.unique(p) for p in parts] if by_tensor else parts)
    return len(np.unique(used)) < len(used)


def mapped(case: Case) -> None:
    _mapped(case, case.rng.choice((b.walk, b.walk, b.layers, b.experts, lb.fused_qkv)))


def casted(case: Case) -> None:
    _mapped(case, b.walk, casts=True)


def tied(case: Case) -> None:
    """One saved tensor for two targets."""
    shape = _shape(case.rng, 2)
    case.tensor("embed", shape, "float32", 0)
    case.save("embed", _boxes(case.rng, shape))
    flip = case.rng.random() < 0.4
    case.statements = ["embed -> embed_out", f"embed{'^T' if flip else ''} -> head"]
    whole = case.arrays["embed"]
    case.expect = {"embed_out": whole, "head": whole.T if flip else whole}
    case.dtypes = dict.fromkeys(case.expect, "float32")
    case.risks.add("fan_out")


def flattened_mapped(case: Case) -> None:
    """Flat ranges under a program: a rename and a transpose, or a split."""
    rng = case.rng
    shape = (rng.choice((2, 4)), rng.choice((2, 3, 5)))
    case.tensor("a", shape, "float32", 0)
    case.save("a", grid(shape, {}))
    case.tensor("a.moment1_0", shape, "float32", 100)
    rows = rng.random() < 0.4
    case.save("a.moment1_0", grid(shape, {}), [_cuts(rng, shape, 3, rows)])
    if not rows:
        case.risks.add("flat_cut_in_a_row")
    turn = rng.random() < 0.5
    case.statements = ["a^T -> b"] if turn else ["a -> b, c, axis=0"]
    for state in ("", ".moment1_0"):
        array = case.arrays["a" + state]
        parts = [array.T] if turn else np.split(array, 2)
        for name, part in zip("bc", parts, strict=False):
            case.expect[name + state] = part
            case.dtypes[name + state] = "float32"


WEIGHTED: list[tuple[Callable[[Case], None], int]] = [
    (boxes, 3),
    (flattened, 5),
    (mapped, 6),
    (casted, 2),
    (tied, 1),
    (flattened_mapped, 2),
]


def build(seed: int) -> Case:
    rng = random.Random(f"loader/{seed}")
    kinds, weights = zip(*WEIGHTED, strict=True)
    make = rng.choices(kinds, weights)[0]
    case = Case(rng, make.__name__)
    make(case)
    return case
