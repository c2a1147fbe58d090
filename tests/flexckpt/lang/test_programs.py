# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random programs: the same values as NumPy, whole and in shards, and back again."""

import pickle
from collections.abc import Mapping
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import flexckpt
from flexckpt.boxes import box_at
from flexckpt.errors import AoaError
from flexckpt.lang import compile_program
from tests.flexckpt.lang.evaluate import evaluate, spec, specs, tensors
from tests.flexckpt.lang.random_programs import Example, examples

_PROPERTY = settings(max_examples=100, deadline=None)


@_PROPERTY
@given(examples())
def test_values(example: Example) -> None:
    program = compile_program(example.lines, specs(example.source), None)
    assert program.outputs.keys() == example.final.keys(), example.lines
    for name, want in example.final.items():
        got = evaluate(program.outputs[name], example.source)
        assert got.shape == want.shape
        assert np.array_equal(got, want), (name, example.lines)


@_PROPERTY
@given(examples())
def test_transform_and_back(example: Example) -> None:
    there = flexckpt.transform(tensors(example.source), "\n".join(example.lines))
    assert there.keys() == example.final.keys()
    for name, want in example.final.items():
        assert torch.equal(there[name], torch.from_numpy(want.copy())), (name, example.lines)
    back = _back(there, example)
    if example.lossless:
        assert back is not None, example.lines
        assert back.keys() == example.source.keys()
        for name, array in example.source.items():
            assert torch.equal(back[name], torch.from_numpy(array)), (name, example.lines)


def _back(there: Mapping[str, torch.Tensor], example: Example) -> Mapping[str, Any] | None:
    """The source again, or None if the program has no inverse."""
    try:
        return flexckpt.transform(there, example.lines, specs(example.source), reverse=True)
    except AoaError as error:
        if error.code in ("AOA306", "AOA401"):
            return None
        raise


@_PROPERTY
@given(examples(), st.integers(1, 4), st.integers(0, 2))
def test_shards(example: Example, parts: int, axis: int) -> None:
    dest = {}
    for name, array in example.final.items():
        dest[name] = spec(array.shape)
        if array.ndim:
            k = axis % array.ndim
            bounds = np.linspace(0, array.shape[k], parts + 1).astype(int)
            boxes = []
            for a, b in pairwise(bounds):
                offset = [0] * array.ndim
                shape = list(array.shape)
                offset[k], shape[k] = int(a), int(b - a)
                boxes.append((tuple(offset), tuple(shape)))
            dest[name] = flexckpt.TensorSpec(array.shape, torch.float64, tuple(boxes))
    out = flexckpt.transform(tensors(example.source), example.lines, dest)
    for name, want in example.final.items():
        if dest[name].shards is None:
            assert torch.equal(out[name], torch.from_numpy(want.copy()))
            continue
        for (offset, shape), got in zip(dest[name].shards, out[name], strict=True):
            box = box_at(offset, shape)
            where = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
            assert torch.equal(got, torch.from_numpy(want[where].copy()))


@settings(max_examples=50, deadline=None)
@given(examples())
def test_a_program_survives_pickling(example: Example) -> None:
    program = compile_program(example.lines, specs(example.source), None)
    again = pickle.loads(pickle.dumps(program))
    assert again.outputs == program.outputs
    assert again.statements() == program.statements()


def test_every_cut_of_a_reshaped_tensor() -> None:
    """Joins and cuts of axes, on tensors whose pieces begin and end inside the blocks."""
    for first, inner in product(range(9), (1, 2, 3, 4, 6, 12)):
        a, b = np.arange(first * 2.0).reshape(first, 2), 100 + np.arange((12 - first) * 2.0)
        source = {"a": a, "b": b.reshape(12 - first, 2)}
        aoa = f"a, b -> c, axis=0 c -> d, reshape='[{12 // inner},{inner},2]'"
        program = compile_program(aoa, specs(source), None)
        want = np.concatenate(list(source.values())).reshape(12 // inner, inner, 2)
        assert np.array_equal(evaluate(program.outputs["d"], source), want)


def test_few_pieces() -> None:
    """Parts that are put back together are one piece again."""
    source = {"a": np.arange(96.0).reshape(12, 8)}
    for aoa in (
        "a -> p[0:4], axis=0 p[0:4] -> b, axis=0",
        "a -> p[0:8], axis=1 p[0:8] -> b, axis=1",
        "a^T -> t t -> p[0:4], axis=1 p[0:4] -> b, axis=1",
        "a -> p[0:12], unstack=0 p[0:12] -> b, stack=0",
        "a -> r, reshape='[3,4,8]' r -> b, reshape='[12,8]'",
        "a -> r, reshape='[3,2,2,4,2]' r -> b, reshape='[96]'",
    ):
        (variable,) = compile_program(aoa, specs(source), None).outputs.values()
        assert len(variable.pieces) == 1, aoa
