# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Inverses: exact where shapes are told, and never silently one of two values or a guess."""

from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

import flexckpt
from flexckpt import AoaError, TensorSpec
from tests.flexckpt.processes import run_ranks

TIE = ["emb -> a", "emb -> b"]
JOIN = "x, y -> c, axis=0"


def whole(path: Path) -> dict[str, torch.Tensor]:
    index = flexckpt.read_index(path)
    out = {k: torch.empty(s.shape, dtype=s.dtype) for k, s in index.specs().items()}
    flexckpt.load(out, path)
    return out


def test_equal_copies_become_one(tmp_path: Path) -> None:
    emb = torch.arange(6.0).view(3, 2)
    emb[1, 1] = float("nan")  # equal to itself, as bytes are
    flexckpt.save({"a": emb, "b": emb.clone()}, tmp_path / "tied")
    got = torch.zeros(3, 2)
    flexckpt.load({"emb": got}, tmp_path / "tied", aoa=TIE, reverse=True)
    torch.testing.assert_close(got, emb, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("state", ["", "@exp_avg"])
def test_different_copies_are_refused_and_change_nothing(tmp_path: Path, state: str) -> None:
    values = {"a": torch.ones(2), "b": torch.ones(2)}
    if state:
        values |= {"a@exp_avg": torch.ones(2), "b@exp_avg": torch.ones(2)}
    values[f"b{state}"][1] = 5
    flexckpt.save(values, tmp_path / "untied")
    targets = {"emb": torch.zeros(2)} | ({"emb@exp_avg": torch.zeros(2)} if state else {})
    like = {"emb": TensorSpec((2,), torch.float32)}
    with pytest.raises(AoaError, match=r"AOA401.*two values"):
        flexckpt.load(targets, tmp_path / "untied", aoa=TIE, reverse=True)
    assert all(not t.any() for t in targets.values())
    to = "flexckpt"  # keeps optimizer states
    with pytest.raises(AoaError, match="AOA401"):
        flexckpt.convert(
            tmp_path / "untied", tmp_path / "out", aoa=TIE, reverse=True, like=like, to=to
        )
    with pytest.raises(AoaError, match="AOA401"):
        flexckpt.save(values, tmp_path / "out", aoa=TIE, reverse=True, like=like)
    with pytest.raises(AoaError, match="AOA401"):
        flexckpt.sync(values, targets, aoa=TIE, reverse=True)
    assert not (tmp_path / "out").exists()


def test_like_makes_an_inverse_exact(tmp_path: Path) -> None:
    x, y = torch.arange(4.0).view(1, 4), torch.arange(12.0).view(3, 4) + 100
    flexckpt.save({"x": x, "y": y}, tmp_path / "parts")
    flexckpt.convert(tmp_path / "parts", tmp_path / "joined", aoa=JOIN, to="flexckpt")
    back = {"aoa": JOIN, "reverse": True, "to": "flexckpt", "like": tmp_path / "parts"}
    flexckpt.convert(tmp_path / "joined", tmp_path / "back", **back)
    flexckpt.save(whole(tmp_path / "joined"), tmp_path / "saved", **back)
    for folder in ("back", "saved"):
        got = whole(tmp_path / folder)
        assert torch.equal(got["x"], x)
        assert torch.equal(got["y"], y)


def test_a_guess_is_told(tmp_path: Path) -> None:
    c = torch.arange(16.0).view(4, 4)
    flexckpt.save({"c": c}, tmp_path / "joined")
    with pytest.warns(UserWarning, match=r"'x, y -> c, axis=0' cuts its result into equal parts"):
        flexckpt.convert(
            tmp_path / "joined", tmp_path / "back", aoa=JOIN, reverse=True, to="flexckpt"
        )
    assert torch.equal(whole(tmp_path / "back")["y"], c[2:])
    told = "x, y -> c, axis=0, sizes=[1,3]"
    flexckpt.convert(tmp_path / "joined", tmp_path / "told", aoa=told, reverse=True, to="flexckpt")
    assert torch.equal(whole(tmp_path / "told")["y"], c[1:])


def fuse_into_dtensor(folder: str) -> None:
    g, u = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(4, 2) + 100
    mesh = init_device_mesh("cpu", (2,))
    flexckpt.save({"g": g, "u": u}, f"{folder}/c")

    def load(fuse: str, placement: object) -> torch.Tensor:
        target = distribute_tensor(torch.zeros(8, 2), mesh, [placement])
        flexckpt.load({"gu": target}, f"{folder}/c", aoa=f"g, u -> gu, fused_ffn, axis=0{fuse}")
        return target.full_tensor()

    with pytest.raises(AoaError, match=r"AOA204.*do not tell"):
        load("", Shard(0))
    assert torch.equal(load(", tp=1", Shard(0)), torch.cat([g, u]))
    assert torch.equal(load(", tp=2", Shard(0)), torch.cat([g[:2], u[:2], g[2:], u[2:]]))
    assert torch.equal(load("", Replicate()), torch.cat([g, u]))
    assert torch.equal(load("", Shard(1)), torch.cat([g, u]))


@pytest.mark.dist
def test_a_dtensor_does_not_tell_how_it_is_fused(tmp_path: Path) -> None:
    run_ranks(fuse_into_dtensor, 2, str(tmp_path))


def unfuse_from_files(folder: str) -> None:
    g, u = torch.arange(8.0).view(4, 2), torch.arange(8.0).view(4, 2) + 100
    mesh = init_device_mesh("cpu", (2,))
    gu = distribute_tensor(torch.cat([g, u]), mesh, [Shard(0)])
    flexckpt.save({"gu": gu}, f"{folder}/fsdp")
    targets = {"g": torch.zeros(4, 2), "u": torch.zeros(4, 2)}
    with pytest.raises(AoaError, match="AOA204"):
        flexckpt.load(targets, f"{folder}/fsdp", aoa="gu -> g, u, fused_ffn, axis=0")
    flexckpt.load(targets, f"{folder}/fsdp", aoa="gu -> g, u, fused_ffn, axis=0, tp=1")
    assert torch.equal(targets["g"], g)
    assert torch.equal(targets["u"], u)


@pytest.mark.dist
def test_files_remember_that_a_mesh_cut_them(tmp_path: Path) -> None:
    run_ranks(unfuse_from_files, 2, str(tmp_path))


def test_a_weight_from_a_master_copy_takes_the_dtype_that_is_wanted(tmp_path: Path) -> None:
    flexckpt.save({"w@master": torch.tensor([1.0, 2.00390625])}, tmp_path / "c")
    got = torch.zeros(2, dtype=torch.bfloat16)
    report = flexckpt.load({"w": got}, tmp_path / "c")
    assert got.tolist() == [1.0, 2.0]
    assert report.stand_ins == ["w: master of w"]


def test_parts_can_be_said_to_be_equal(tmp_path: Path) -> None:
    c = torch.arange(16.0).view(4, 4)
    flexckpt.save({"c": c}, tmp_path / "joined")
    told = "x, y -> c, axis=0, sizes='equal'"
    flexckpt.convert(tmp_path / "joined", tmp_path / "back", aoa=told, reverse=True, to="flexckpt")
    assert torch.equal(whole(tmp_path / "back")["y"], c[2:])
    assert torch.equal(flexckpt.transform({"x": c[:2], "y": c[2:]}, told)["c"], c)
    with pytest.raises(AoaError, match=r"AOA302.*proportions"):
        flexckpt.transform({"x": c[:1], "y": c[1:]}, told)
