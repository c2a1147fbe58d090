# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Engines of DeepSpeed with tensor parallelism: their checkpoints, and other degrees after them."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flexckpt.interop.deepspeed_places import Places
from flexckpt.io.deepspeed import READER_ZERO
from flexckpt.io.deepspeed_tp import Rules
from flexckpt.model import Shard
from tests.flexckpt.deepspeed import tp_jobs
from tests.flexckpt.deepspeed.gather import gather, gather_shards
from tests.flexckpt.deepspeed.jobs import launch
from tests.flexckpt.deepspeed.tp_files import INFO, PARAMETERS, TP, local, whole


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 3])
def test_tensor_parallel_engines_go_on(stage: int, tmp_path: Path) -> None:
    two = launch(2, tp_jobs.make, tmp_path / "two", stage, 2)
    losses = two[0][1]
    held = gather_shards(shards for shards, _ in two)
    index = READER_ZERO.read_index(tmp_path / "two")
    for state in ("weight", "exp_avg", "exp_avg_sq"):
        stored = gather(index, state)
        assert {key for key, s in held if s == state} == stored.keys()
        for key, tensor in stored.items():
            assert torch.equal(tensor, held[key, state]), (key, state)
    one = launch(1, tp_jobs.resume, tmp_path / "two", stage, 1, tmp_path / "one")
    assert one[0] == pytest.approx(losses, rel=1e-5)
    again = launch(2, tp_jobs.resume, tmp_path / "one", stage, 2)
    assert again[0] == pytest.approx(losses, rel=1e-5)


def _places(rank: int) -> Places:
    """The places of a rank, without an engine and its processes."""
    places = Places(SimpleNamespace(mp_world_size=1))
    for name in PARAMETERS:
        shapes = [tuple(local(name, whole(name, "master"), r).shape) for r in range(TP)]
        placement = Rules(INFO).place(name, shapes)
        places.parts[name] = placement.shape, placement.ranks[rank] or placement.ranks[0]
    return places


@pytest.mark.parametrize("cuts", [[], [1], [7, 8], [5, 11]])
@pytest.mark.parametrize("name", PARAMETERS)
def test_flat_parts_of_cut_parameters(name: str, cuts: list[int]) -> None:
    """Ranges of a flattened local tensor lie where the rules put them, and share its memory."""
    tensor = whole(name, "master")
    ranks: list[list[Shard]] = []
    for rank in range(TP if PARAMETERS[name][1] is not None else 1):
        mine = local(name, tensor, rank).contiguous()
        shape, zero = tuple(mine.shape), (0,) * mine.dim()
        buffer = torch.cat([torch.zeros(3), mine.flatten()])
        edges = [0, *(c for c in cuts if c < mine.numel()), mine.numel()]
        spans = list(pairwise(edges))
        flat = [Shard(name, buffer[3 + a : 3 + b], shape, zero, shape, (a, b)) for a, b in spans]
        ranks.append(_places(rank)(flat))
        assert all(
            s.tensor.untyped_storage().data_ptr() == buffer.untyped_storage().data_ptr()
            for s in ranks[-1]
        )
    found = gather_shards(ranks)[name, "weight"]
    assert torch.equal(found, tensor[: len(found)])
    assert len(found) == (len(tensor) if name != "embed.weight" else INFO["original_vocab_size"])


@pytest.mark.parametrize("name", PARAMETERS)
def test_whole_cut_parameters(name: str) -> None:
    tensor = whole(name, "master")
    ranks: list[list[Shard]] = []
    for rank in range(TP if PARAMETERS[name][1] is not None else 1):
        mine: Any = local(name, tensor, rank)
        ranks.append(_places(rank)([Shard(name, mine, mine.shape, (0,) * mine.dim())]))
    found = gather_shards(ranks)[name, "weight"]
    assert torch.equal(found, tensor[: len(found)])
