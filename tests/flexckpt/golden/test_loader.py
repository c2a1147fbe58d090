# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.load against what real Paddle loads, from our files and from its own."""

import gzip
import json
import random
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flexckpt
from flexckpt.states import join_name, split_name
from flexckpt.testing import write_checkpoint
from tests.flexckpt.golden.loader_cases import values_of
from tests.flexckpt.golden.program import fingerprint, grid

_HERE = Path(__file__).parent
_DATA = json.loads(gzip.decompress((_HERE / "golden_loader.json.gz").read_bytes()))
_CASES = {case["id"]: case for case in _DATA["cases"]}
_FILES = _HERE / "golden_loader_files.zip"
with zipfile.ZipFile(_FILES) as _archive:
    _KEPT = sorted({name.split("/")[0] for name in _archive.namelist()})
_UNFILLED = -7


def _dtype(entry: dict[str, Any]) -> torch.dtype:
    dtype = getattr(torch, entry["dtype"])
    assert isinstance(dtype, torch.dtype)
    return dtype


def _write(case: dict[str, Any], path: Path) -> None:
    ranks = []
    for items in case["ranks"]:
        shards = []
        for item in items:
            key, state = split_name(item["key"])
            entry = case["tensors"][item["key"]]
            values = torch.from_numpy(np.ascontiguousarray(values_of(case, item)))
            shards.append(
                flexckpt.Shard(
                    key,
                    values.to(_dtype(entry)),
                    entry["shape"],
                    item["offset"],
                    item["shape"],
                    tuple(item["range"]) if "range" in item else None,
                    state,
                )
            )
        ranks.append(shards)
    write_checkpoint(path, ranks)


def _load(case: dict[str, Any], path: Path, targets: Any) -> None:
    flexckpt.load(targets, path, aoa=case["statements"], strict={"unexpected": "ignore"})


def _full_targets(case: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: torch.full(entry["shape"], _UNFILLED, dtype=_dtype(entry))
        for name, entry in case["targets"].items()
    }


def _numbers(tensor: torch.Tensor) -> np.ndarray:
    return tensor.to(torch.float64).numpy()


def _shards(case: dict[str, Any], chance: random.Random) -> list[flexckpt.Shard]:
    """Targets cut once on some axis, most of the boxes into three flat ranges."""
    shards = []
    for name, entry in case["targets"].items():
        key, state = split_name(name)
        shape = tuple(entry["shape"])
        axes = [a for a, n in enumerate(shape) if n > 1]
        axis = chance.choice(axes) if axes else 0
        for offset, local in grid(
            shape, {axis: [chance.randrange(1, shape[axis])]} if axes else {}
        ):
            size = prod(local)
            at = sorted(chance.randrange(size + 1) for _ in range(2))
            whole = chance.random() < 0.4
            ranges = [None] if whole else list(zip([0, *at], [*at, size], strict=True))
            for part in ranges:
                count = local if part is None else (part[1] - part[0],)
                tensor = torch.full(count, _UNFILLED, dtype=_dtype(entry))
                shards.append(flexckpt.Shard(key, tensor, shape, offset, local, part, state))
    return shards


def _joined(case: dict[str, Any], shards: list[flexckpt.Shard]) -> dict[str, np.ndarray]:
    arrays = {n: np.full(e["shape"], _UNFILLED, float) for n, e in case["targets"].items()}
    names = {split_name(name): name for name in arrays}
    for shard in shards:
        assert shard.local_shape is not None
        out = arrays[names[shard.key, shard.state]]
        box = tuple(slice(a, a + n) for a, n in zip(shard.offset, shard.local_shape, strict=True))
        part = np.ascontiguousarray(out[box])
        within = slice(None) if shard.flat_range is None else slice(*shard.flat_range)
        part.reshape(-1)[within] = _numbers(shard.tensor).reshape(-1)
        out[box] = part.reshape(out[box].shape)
    return arrays


def _check(case: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    found = {name: fingerprint(array) for name, array in arrays.items()}
    assert found == case["expect"]


@pytest.mark.parametrize("name", _CASES)
def test_our_files(name: str, tmp_path: Path) -> None:
    """Into whole targets, and into boxes and flat ranges of boxes, which hold the same together."""
    case = _CASES[name]
    _write(case, tmp_path / "checkpoint")
    targets = _full_targets(case)
    _load(case, tmp_path / "checkpoint", targets)
    _check(case, {key: _numbers(t) for key, t in targets.items()})
    shards = _shards(case, random.Random(name))
    _load(case, tmp_path / "checkpoint", shards)
    _check(case, _joined(case, shards))


@pytest.mark.parametrize("name", _KEPT)
def test_files_of_paddle(name: str, tmp_path: Path) -> None:
    """The same from what Paddle's processes wrote; by our names of states, too."""
    case = _CASES[name]
    with zipfile.ZipFile(_FILES) as archive:
        members = [n for n in archive.namelist() if n.startswith(f"{name}/")]
        archive.extractall(tmp_path, members)
    targets = _full_targets(case)
    ours = {join_name(*split_name(key)): tensor for key, tensor in targets.items()}
    _load(case, tmp_path / name, ours)
    _check(case, {key: _numbers(t) for key, t in targets.items()})


def test_the_data_is_broad() -> None:
    verdicts = [case["verdict"] for case in _CASES.values()]
    assert len(verdicts) >= 100
    assert verdicts.count("paddle") >= 70
    assert len(_KEPT) >= 40
    assert {reason for case in _CASES.values() for reason in case.get("why", ())} == set(
        _DATA["risks"]
    )
