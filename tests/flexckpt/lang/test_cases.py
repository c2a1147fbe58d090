# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Cases that Paddle's engine and NumPy agree on (cases.json), whole, cut, and back again."""

import json
from collections import Counter
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexckpt
from flexckpt.boxes import box_at
from flexckpt.errors import AoaError
from flexckpt.lang import compile_program
from tests.flexckpt.lang.evaluate import paint

_CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))
_BY_ID = {case["id"]: case for case in _CASES}


def _ids(kind: str) -> list[str]:
    return [case["id"] for case in _CASES if case["kind"] == kind]


def _spec(entry: dict[str, Any]) -> flexckpt.TensorSpec:
    shards = entry.get("shards")
    boxes = None if shards is None else tuple((tuple(o), tuple(n)) for o, n in shards)
    return flexckpt.TensorSpec(tuple(entry["shape"]), getattr(torch, entry["dtype"]), boxes)


def _specs(case: dict[str, Any], side: str) -> dict[str, flexckpt.TensorSpec]:
    return {name: _spec(entry) for name, entry in case[side].items()}


def _tensors(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    out = {}
    for name, entry in case["source"].items():
        values = torch.arange(prod(entry["shape"]), dtype=torch.float64) + entry["start"]
        out[name] = values.reshape(entry["shape"]).to(getattr(torch, entry["dtype"]))
    return out


def _transform(case: dict[str, Any], dest: Any) -> dict[str, Any]:
    return flexckpt.transform(
        _tensors(case),
        case["statements"],
        dest,
        source_specs=_specs(case, "source"),
        reverse=case["reverse"],
    )


def _whole(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """The expected tensors, put together from their shards."""
    out = {}
    for name, parts in case["expect"].items():
        if case["dest"] is None or "shards" not in case["dest"][name]:
            out[name] = np.array(parts[0])
            continue
        entry = case["dest"][name]
        out[name] = np.empty(entry["shape"])
        for (offset, shape), values in zip(entry["shards"], parts, strict=True):
            where = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            out[name][where] = values
    return out


def _cut(shape: tuple[int, ...], axis: int, parts: int) -> tuple[Any, ...]:
    """Boxes of about equal lengths on one axis; some may be empty."""
    bounds = [round(i * shape[axis] / parts) for i in range(parts + 1)]
    boxes = []
    for a, b in pairwise(bounds):
        offset = tuple(a if k == axis else 0 for k in range(len(shape)))
        boxes.append((offset, (*shape[:axis], b - a, *shape[axis + 1 :])))
    return tuple(boxes)


@pytest.mark.parametrize("name", _ids("values"))
def test_values(name: str) -> None:
    case = _BY_ID[name]
    out = _transform(case, case["dest"] and _specs(case, "dest"))
    assert out.keys() == case["expect"].keys()
    for key, parts in case["expect"].items():
        got = out[key] if isinstance(out[key], list) else [out[key]]
        assert [t.tolist() for t in got] == parts, key


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("name", _ids("values"))
def test_values_cut_for_several_ranks(name: str, parts: int) -> None:
    case = _BY_ID[name]
    whole = _whole(case)
    source = {key: t.to(torch.float64).numpy() for key, t in _tensors(case).items()}
    dest = case["dest"] and _specs(case, "dest")
    # The shards of the destination are part of what fused_ffn means, so they stay.
    program = compile_program(
        case["statements"],
        _specs(case, "source"),
        dest,
        reverse=case["reverse"],
        strict={"unexpected": "ignore"},
    )
    for key, values in whole.items():
        for axis in range(values.ndim):
            for offset, shape in _cut(values.shape, axis, parts):
                got = np.full(values.shape, np.nan)
                count = np.zeros(values.shape, dtype=int)
                box = box_at(offset, shape)
                paint(program.outputs[key].query(box), source, got, count)
                where = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
                assert np.array_equal(got[where], values[where]), (key, axis)
                assert (count[where] == 1).all()
                assert count.sum() == prod(shape)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_transform_into_shards(axis: int, parts: int) -> None:
    case = _BY_ID["prim_T_concat_T_split"]
    whole = _whole(case)
    dest = {
        key: flexckpt.TensorSpec(v.shape, torch.float32, _cut(v.shape, axis, parts))
        for key, v in whole.items()
    }
    out = _transform(case, dest)
    for key, values in whole.items():
        assert [t.tolist() for t in out[key]] == [
            values[tuple(slice(a, a + n) for a, n in zip(o, s, strict=True))].tolist()
            for o, s in dest[key].shards or ()
        ]


# Cases whose program loses something, or makes it twice.
_ONE_WAY = {
    "prim_cast_bf16_then_concat": "AOA401",  # a plain cast
    "prim_delete": None,  # what was dropped keeps its values on the way back
    "prim_last_assignment_wins": "AOA306",
    "wl_layer_id_with_star": "AOA306",
}


@pytest.mark.parametrize("name", [i for i in _ids("values") if not _BY_ID[i]["reverse"]])
def test_round_trip(name: str) -> None:
    case = _BY_ID[name]
    dest = case["dest"] and _specs(case, "dest")
    source = _tensors(case)
    there = flexckpt.transform(
        source, case["statements"], dest and {k: _unsharded(s) for k, s in dest.items()}
    )
    wanted = _specs(case, "source")
    code = _ONE_WAY.get(name)
    if code is not None:
        with pytest.raises(AoaError) as error:
            flexckpt.transform(there, case["statements"], wanted, reverse=True)
        assert error.value.code == code
        return
    back = flexckpt.transform(there, case["statements"], wanted, reverse=True)
    dropped = {"b"} if name == "prim_delete" else set()
    assert back.keys() == source.keys() - dropped
    for key, tensor in back.items():
        assert torch.equal(tensor, source[key]), key


def _unsharded(spec: flexckpt.TensorSpec) -> flexckpt.TensorSpec:
    return flexckpt.TensorSpec(spec.shape, spec.dtype)


@pytest.mark.parametrize("name", _ids("error"))
def test_error(name: str) -> None:
    case = _BY_ID[name]
    with pytest.raises(AoaError) as error:
        _transform(case, case["dest"] and _specs(case, "dest"))
    assert error.value.line is not None
    assert error.value.excerpt is not None


@pytest.mark.parametrize("name", _ids("expand"))
def test_expand(name: str) -> None:
    case = _BY_ID[name]
    lines = flexckpt.expand(
        case["statements"], _specs(case, "source"), case["dest"] and _specs(case, "dest")
    )
    want = ["".join(line.split()) for line in case["expect_statements"]]
    assert ["".join(line.split()) for line in lines] == want


def test_the_data_is_there() -> None:
    kinds = Counter(case["kind"] for case in _CASES)
    assert kinds == {"values": 26, "error": 11, "expand": 3}
