# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""full_params, sync, convert and save with a mapping, on one to four ranks, against plain torch."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import flexckpt
from flexckpt import CheckpointError, LayoutError, Shard
from flexckpt.api import full_params as full_params_module
from flexckpt.api import sync as sync_module
from flexckpt.plan.planner import make_plan
from flexckpt.testing import write_checkpoint
from tests.flexckpt.core import mapped
from tests.flexckpt.core.mapped import MAPPING, columns, expected, held, source, wrong_columns
from tests.flexckpt.processes import run_ranks

pytestmark = pytest.mark.dist
SIZES = (1, 2, 3, 4)
WEIGHTS_AND_STATES = ("weight", "exp_avg", "step")


def same(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> list[str]:
    names = sorted(got.keys() ^ want.keys())
    both = got.keys() & want.keys()
    return names + [
        n for n in both if got[n].dtype != want[n].dtype or not torch.equal(got[n], want[n])
    ]


def take_everything() -> list[str]:
    """Full tensors, twice with other values; what was wrong, and how often a plan was made."""
    rank, size = dist.get_rank(), dist.get_world_size()
    bad = []
    with patch.object(full_params_module, "make_plan", wraps=make_plan) as planning:
        for salt in (0, 1, 2):
            shards = held(rank, size, salt)
            options = {"aoa": MAPPING, "states": WEIGHTS_AND_STATES, "batch_bytes": 200}
            got = {}
            order = []
            for name, tensor in flexckpt.full_params(shards, **options):  # type: ignore[arg-type]
                got[name] = tensor
                order.append(name)
                if not torch.is_grad_enabled():
                    bad.append("autograd is off for whoever takes the tensors")
            bad += [f"{salt} {name}" for name in same(got, expected(source(salt)))]
            if salt == 0:
                first = order
            if order != first:
                bad.append(f"another order: {order}")
        if planning.call_count != 1:
            bad.append(f"planned {planning.call_count} times")
    return bad


@pytest.mark.parametrize("size", SIZES)
def test_full_params(size: int) -> None:
    assert run_ranks(take_everything, size) == [[]] * size


def take_on_one() -> tuple[int, list[str]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    stats = flexckpt.execute.Stats()
    got = dict(
        flexckpt.full_params(held(rank, size, states=False), aoa=MAPPING, ranks=[1], stats=stats)
    )
    weights = {n: t for n, t in expected(source()).items() if "@" not in n}
    return stats.received, same(got, weights) if got else ["none"]


def test_only_some_ranks_want_the_tensors() -> None:
    results = run_ranks(take_on_one, 3)
    assert [bad for _, bad in results] == [["none"], [], ["none"]]
    assert [received > 0 for received, _ in results] == [False, True, False]


def move(trainers: int) -> list[str]:
    """From the first ranks to the last ones, three times; both roles on each if all train."""
    rank, size = dist.get_rank(), dist.get_world_size()
    servers = size - trainers or size
    bad = []
    targets = columns(rank - size + servers, servers) if rank >= size - servers else None
    with patch.object(sync_module, "make_plan", wraps=make_plan) as planning:
        for salt in (0, 1, 2):
            shards = held(rank, trainers, salt) if rank < trainers else None
            flexckpt.sync(shards, targets, aoa=MAPPING)
            bad += [f"{salt} {name}" for name in wrong_columns(targets or [], salt)]
        if planning.call_count != 1:
            bad.append(f"planned {planning.call_count} times")
        for shard in targets or []:
            shard.tensor = shard.tensor.clone()  # lies otherwise in memory: another plan
        flexckpt.sync(held(rank, trainers) if rank < trainers else None, targets, aoa=MAPPING)
        bad += [f"moved {name}" for name in wrong_columns(targets or [])]
        if planning.call_count != 2:
            bad.append(f"planned {planning.call_count} times in the end")
    return bad


@pytest.mark.parametrize(("size", "trainers"), [(1, 1), (2, 1), (2, 2), (3, 2), (4, 2), (4, 4)])
def test_sync(size: int, trainers: int) -> None:
    assert run_ranks(move, size, trainers) == [[]] * size


def test_sync_in_one_process_refuses_shared_memory() -> None:
    tensor = torch.arange(12.0)
    with pytest.raises(LayoutError, match=r"LAY102.*'b' and 'a'|LAY102.*'a' and 'b'"):
        flexckpt.sync({"a": tensor[:8]}, {"b": tensor[6:]}, aoa="a -> b, axis=0", strict=False)
    flexckpt.sync({"a": tensor[:6]}, {"b": tensor[6:]}, aoa="a -> b")
    assert torch.equal(tensor[6:], torch.arange(6.0))


def sync_strictly() -> list[str]:
    """Targets of one rank only, that nothing fills or that a statement keeps."""
    rank = dist.get_rank()
    have = {"a": torch.ones(3)} if rank == 0 else None
    want = {"a": torch.zeros(3), "extra": torch.full((2,), 5.0)} if rank == 1 else None
    codes = []
    try:
        flexckpt.sync(have, want)
    except flexckpt.FlexckptError as error:
        codes.append(error.code)
    flexckpt.sync(have, want, aoa="_ -> extra")
    flexckpt.sync(have, want, strict={"missing": "ignore"})
    if want:
        codes += [str(want["a"].tolist()), str(want["extra"].tolist())]
    return codes


def test_sync_tells_what_is_missing() -> None:
    first, second = run_ranks(sync_strictly, 2)
    assert first[0] == second[0] == "AOA306"
    assert second[1:] == ["[1.0, 1.0, 1.0]", "[5.0, 5.0]"]


def save_all(folder: str) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    shards = held(rank, size)
    flexckpt.save(shards, f"{folder}/hf{size}", aoa=MAPPING, to="hf", shard_size=300)
    flexckpt.save(shards, f"{folder}/own{size}", aoa=MAPPING, async_=True).wait()
    flexckpt.save(shards, f"{folder}/plain{size}")
    flexckpt.convert(f"{folder}/plain{size}", f"{folder}/conv{size}", aoa=MAPPING, shard_size=300)
    flexckpt.convert(f"{folder}/plain{size}", f"{folder}/self{size}", aoa=MAPPING, to="flexckpt")


def weights_in(folder: Path) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    for file in files:
        out |= load_file(file)
    return out


@pytest.mark.parametrize("size", SIZES)
def test_save_and_convert_with_a_mapping(tmp_path: Path, size: int) -> None:
    run_ranks(save_all, size, str(tmp_path))
    want = expected(source())
    weights = {name: tensor for name, tensor in want.items() if "@" not in name}
    for name in ("hf", "conv"):
        assert same(weights_in(tmp_path / f"{name}{size}"), weights) == []
    for name in ("own", "self"):
        targets = {key: torch.full_like(tensor, -1) for key, tensor in want.items()}
        flexckpt.load(targets, tmp_path / f"{name}{size}")
        assert same(targets, want) == []
        flexckpt.verify(tmp_path / f"{name}{size}")


def load_mapped(folder: str) -> list[str]:
    """Targets of which every rank owns others: layers and experts by rank, the rest in columns."""
    rank, size = dist.get_rank(), dist.get_world_size()
    targets = columns(rank, size)
    flexckpt.load(targets, f"{folder}/plain", aoa=MAPPING)
    bad = wrong_columns(targets)
    back = held(rank, size)
    for shard in back:
        shard.tensor.zero_()
    flexckpt.load(back, f"{folder}/plain")
    for shard, want in zip(back, held(rank, size), strict=True):
        if not torch.equal(shard.tensor, want.tensor):
            bad.append(shard.key)
    return bad


@pytest.mark.parametrize("size", SIZES)
def test_load_with_a_mapping(tmp_path: Path, size: int) -> None:
    write_checkpoint(tmp_path / "plain", [held(rank, 3) for rank in range(3)])
    assert run_ranks(load_mapped, size, str(tmp_path)) == [[]] * size


def test_the_inverse_brings_everything_back(tmp_path: Path) -> None:
    program = [line for line in MAPPING if "norm" not in line]
    program.append("model.norm -> norm, src_dtype='float32', dst_dtype='bfloat16'")
    program = [line for line in program if "layers" not in line]
    for n in range(mapped.LAYERS):
        names = ", ".join(f"model.layers.{n}.{x}" for x in "qkv")
        program.append(f"{names} -> layers.{n}.qkv, axis=0")
    want = {n: t for n, t in source().items() if not n.endswith("@step")}
    write_checkpoint(tmp_path / "there", [held(0, 1)])
    flexckpt.convert(tmp_path / "there", tmp_path / "mapped", aoa=program, to="flexckpt")
    back = {name: torch.zeros_like(tensor) for name, tensor in want.items()}
    flexckpt.load(back, tmp_path / "mapped", aoa=program, reverse=True)
    rounded = want["model.norm"].bfloat16().float()
    assert torch.equal(back["model.norm"], rounded)
    assert same({**back, "model.norm": want["model.norm"]}, want) == []


def test_scalars_of_merged_parameters_must_agree(tmp_path: Path) -> None:
    state = {
        "a": torch.ones(2),
        "b": torch.ones(3),
        "a@step": torch.tensor(1),
        "b@step": torch.tensor(2),
    }
    flexckpt.save(state, tmp_path / "ck")
    target = {"c": torch.zeros(5), "c@step": torch.tensor(0)}
    with pytest.raises(CheckpointError, match=r"CKP203.*'c@step'.*1.*2"):
        flexckpt.load(target, tmp_path / "ck", aoa="a, b -> c, axis=0")
    for name in ("a", "b"):
        state[f"{name}@step"] = torch.tensor(4)
    flexckpt.save(state, tmp_path / "ck")
    flexckpt.load(target, tmp_path / "ck", aoa="a, b -> c, axis=0")
    assert target["c@step"].item() == 4


def test_ranks_that_are_not_there() -> None:
    with pytest.raises(flexckpt.FlexckptError, match=r"ARG101.*\[3\]"):
        list(flexckpt.full_params({"w": torch.ones(2)}, ranks=[0, 3]))


def test_memory_that_is_not_contiguous() -> None:
    base = torch.arange(40.0).view(5, 8)
    state = [
        Shard("w", base[:, 1::3].t(), (3, 5), (0, 0)),
        Shard("x", base.t()[2:4], (2, 5), (0, 0)),
    ]
    got = dict(flexckpt.full_params(state, aoa="w, x -> y, axis=0"))
    assert torch.equal(got["y"], torch.cat([base[:, 1::3].t(), base.t()[2:4]]))
