# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.transform against what real Paddle made of random programs (make_golden.py)."""

import gzip
import json
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch

import flexckpt
from flexckpt.errors import FlexckptError
from tests.flexckpt.golden.program import fingerprint

_DATA = json.loads(
    gzip.decompress(Path(__file__).with_name("golden_programs.json.gz").read_bytes())
)
_PROGRAMS = {case["id"]: case for case in _DATA["programs"]}
_ERRORS = {case["id"]: case for case in _DATA["errors"]}


def _spec(entry: dict[str, Any]) -> flexckpt.TensorSpec:
    shards = entry.get("shards")
    boxes = None if shards is None else tuple((tuple(o), tuple(n)) for o, n in shards)
    return flexckpt.TensorSpec(tuple(entry["shape"]), getattr(torch, entry["dtype"]), boxes)


def _tensor(entry: dict[str, Any]) -> torch.Tensor:
    first = entry.get("start", 0)
    flat = torch.arange(first, first + prod(entry["shape"]), dtype=torch.float64)
    return flat.to(getattr(torch, entry["dtype"])).reshape(entry["shape"])


def _transform(case: dict[str, Any]) -> dict[str, list[torch.Tensor]]:
    source = {name: _tensor(entry) for name, entry in case["source"].items()}
    dest = case["dest"] and {name: _spec(entry) for name, entry in case["dest"].items()}
    out = flexckpt.transform(
        source,
        case["statements"],
        dest,
        source_specs={name: _spec(entry) for name, entry in case["source"].items()},
        reverse=case["reverse"],
    )
    return {name: v if isinstance(v, list) else [v] for name, v in out.items()}


def _values(tensor: torch.Tensor) -> list[int] | str:
    return fingerprint(tensor.to(torch.float64).numpy())


# What this project refuses as Paddle does: a star on the right looks names up in the destination.
_REFUSED = "star_without_dest"


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program(name: str) -> None:
    case = _PROGRAMS[name]
    if _REFUSED in case.get("why", ()):
        with pytest.raises(FlexckptError, match="AOA203"):
            _transform(case)
        return
    out = _transform(case)
    assert out.keys() - set(case.get("kept", ())) == case["expect"].keys()
    for key, parts in case["expect"].items():
        assert [_values(t) for t in out[key]] == parts, key
        if case["dest"] is None:
            assert list(out[key][0].shape) == case["expect_shapes"][key]
            continue
        spec = _spec(case["dest"][key])
        shapes = [spec.shape] if spec.shards is None else [shape for _, shape in spec.shards]
        assert [tuple(t.shape) for t in out[key]] == shapes
        assert {t.dtype for t in out[key]} == {spec.dtype}


@pytest.mark.parametrize("name", _ERRORS)
def test_error(name: str) -> None:
    with pytest.raises(FlexckptError):
        _transform(_ERRORS[name])


@pytest.mark.parametrize(
    ("statement", "names", "expected"),
    [
        ("a[0:2]^T -> c, axis=0", ("a_0", "a_1"), {"c": [[0, 3], [1, 4], [2, 5]] * 2}),
        ("a[0:2].w -> c, axis=1", ("a_0.w", "a_1.w"), {"c": [[0, 1, 2] * 2, [3, 4, 5] * 2]}),
        (
            "l.$LAYER_ID.w, b -> l.$LAYER_ID.c, axis=1",
            ("l.7.w", "b"),
            {"l.7.c": [[0, 1, 2] * 2, [3, 4, 5] * 2]},
        ),
    ],
)
def test_more_than_paddle(
    statement: str, names: tuple[str, ...], expected: dict[str, list[list[int]]]
) -> None:
    """What Paddle refuses and this project gives a meaning."""
    source = {name: torch.arange(6.0).reshape(2, 3) for name in names}
    out = flexckpt.transform(source, [statement])
    assert {name: tensor.tolist() for name, tensor in out.items()} == expected


def test_the_data_is_broad() -> None:
    verdicts = [case["verdict"] for case in _PROGRAMS.values()]
    assert len(verdicts) >= 400
    assert verdicts.count("paddle") >= 300
    assert sum(case["paddle"] != "accepts" for case in _ERRORS.values()) >= 80
