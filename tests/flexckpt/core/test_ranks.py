# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Saved by some number of ranks, loaded by another, held in other ways: the values are the same."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import flexckpt
from flexckpt import Shard
from tests.flexckpt.core.sharded import held, whole, wrong
from tests.flexckpt.processes import run_ranks

pytestmark = pytest.mark.dist
SIZES = (1, 2, 3, 4)


def save_all(folder: str) -> int:
    """Save in both ways to hold tensors, with every option; the bytes that this rank wrote."""
    size = dist.get_world_size()
    first = flexckpt.save(held(0, filled=True), f"{folder}/{size}-0", extra={"size": size})
    flexckpt.save(held(1, filled=True), f"{folder}/{size}-1", redundancy=True, async_=True).wait()
    flexckpt.save(held(1, filled=True), f"{folder}/{size}-d", to="dcp")
    flexckpt.save(held(0, filled=True), f"{folder}/{size}-w", aoa=[], to="flexckpt")
    return first.stats.written


def load_all(folder: str) -> list[str]:
    """Load all checkpoints into both ways; what was wrong."""
    bad = []
    for number, name in enumerate(sorted(os.listdir(folder))):
        for variant in (0, 1):
            read_once = (number + variant) % 3 != 0
            targets = held(variant, filled=False)
            report = flexckpt.load(targets, f"{folder}/{name}", read_once=read_once)
            bad += [f"{name} {variant} {read_once} {key}" for key in wrong(targets)]
            if report.missing or report.unexpected or report.kept:
                bad.append(f"{name}: {report}")
    return bad


def load_alone(folder: Path) -> list[str]:
    """The same without torch.distributed."""
    bad = []
    for path in sorted(folder.iterdir()):
        targets = {"plain": torch.zeros(4, 3).bfloat16(), "flat": torch.zeros(5, 7)}
        flexckpt.load(targets, path, strict={"unexpected": "ignore"})
        bad += [f"{path.name} {key}" for key in wrong(targets)]
    return bad


def test_any_number_of_ranks_to_any_other(tmp_path: Path) -> None:
    for size in SIZES:
        run_ranks(save_all, size, str(tmp_path))
    for size in SIZES:
        assert run_ranks(load_all, size, str(tmp_path)) == [[]] * size
    assert load_alone(tmp_path) == []
    for path in tmp_path.iterdir():
        flexckpt.verify(path)
    kept = [flexckpt.read_index(tmp_path / f"{size}-0").extra["size"] for size in SIZES]
    assert kept == list(SIZES)


def replicated(folder: str) -> tuple[int, int, int]:
    """Bytes written, read, and received of tensors that every rank holds as a whole."""
    state = {f"w{n}": torch.full((64, 16), float(n)) for n in range(12)}
    saved = flexckpt.save(state, f"{folder}/ck")
    targets = {name: torch.zeros(64, 16) for name in state}
    report = flexckpt.load(targets, f"{folder}/ck")
    assert all(torch.equal(targets[name], state[name]) for name in state)
    return saved.stats.written, report.stats.read, report.stats.received


def test_replicas_are_written_and_read_once(tmp_path: Path) -> None:
    each = 64 * 16 * 4
    assert run_ranks(replicated, 3, str(tmp_path)) == [(4 * each, 4 * each, 8 * each)] * 3


def redundant(folder: str) -> tuple[int, int]:
    """Every rank writes what it holds, and takes nothing from the other when it comes back."""
    rank = dist.get_rank()
    own = torch.full((8, 4), float(rank))
    state = [Shard("w", own, (16, 4), (8 * rank, 0)), Shard("both", torch.ones(5), (5,), (0,))]
    saved = flexckpt.save(state, f"{folder}/ck", redundancy=True)
    index = flexckpt.read_index(f"{folder}/ck")
    files = {s.file for s in index.entries["both", "weight"].shards}
    assert files == {0, 1}
    own.zero_()
    report = flexckpt.load(state, f"{folder}/ck", read_once=False)
    assert own.eq(rank).all()
    return saved.stats.written, report.stats.received


def test_redundant_shards_are_all_written(tmp_path: Path) -> None:
    assert run_ranks(redundant, 2, str(tmp_path)) == [((32 + 5) * 4, 0)] * 2


def frozen_and_leaf(folder: str) -> bool:
    """Parameters that require a gradient are filled, also where another rank reads for this one."""
    layer = torch.nn.Linear(6, 3)
    flexckpt.save(dict(layer.named_parameters()), f"{folder}/ck")
    other = torch.nn.Linear(6, 3)
    torch.nn.init.zeros_(other.weight)
    shards = [
        Shard("weight", other.weight, (3, 6), (0, 0)),
        Shard("bias", other.bias, (3,), (0,)),
    ]
    flexckpt.load(shards, f"{folder}/ck")
    return torch.equal(other.weight, layer.weight) and other.weight.requires_grad


def test_parameters_on_several_ranks(tmp_path: Path) -> None:
    assert run_ranks(frozen_and_leaf, 2, str(tmp_path)) == [True, True]


def some_ranks(folder: str) -> list[str] | str:
    """Only ranks 1 and 2 of three save and load, in a group of theirs."""
    group = dist.new_group([1, 2])
    assert isinstance(group, dist.ProcessGroup) or dist.get_rank() == 0
    if dist.get_rank() == 0:
        try:
            flexckpt.save({"w": torch.ones(2)}, f"{folder}/ck", group=group)
        except flexckpt.FlexckptError as error:
            return error.code
        return "no error"
    half = torch.full((2,), float(dist.get_rank()))
    shard = Shard("w", half, (4,), (2 * dist.get_rank() - 2,))
    flexckpt.save([shard], f"{folder}/ck", group=group)
    target = {"w": torch.zeros(4)}
    flexckpt.load(target, f"{folder}/ck", group=group, timeout=30)
    return [str(int(n)) for n in target["w"]]


def test_a_group_of_some_ranks(tmp_path: Path) -> None:
    values = ["1", "1", "2", "2"]
    assert run_ranks(some_ranks, 3, str(tmp_path)) == ["ARG101", values, values]


def unequal_groups(folder: str) -> list[float]:
    """Ranks of a job are in different numbers of groups; a time limit makes one more."""
    dist.new_group([0, 1])
    saved = {"w": torch.ones(3)}
    flexckpt.save(saved, f"{folder}/ck", async_=True, timeout=30).wait()
    target = {"w": torch.zeros(3)}
    flexckpt.load(target, f"{folder}/ck", timeout=20)
    return target["w"].tolist()


def test_ranks_with_different_numbers_of_groups(tmp_path: Path) -> None:
    assert run_ranks(unequal_groups, 3, str(tmp_path), timeout=60) == [[1.0] * 3] * 3


def contradicting(folder: str, what: str) -> str:
    rank = dist.get_rank()
    values = {
        "shape": [Shard("w", torch.ones(2), (4 + rank,), (2 * rank,))],
        "dtype": [
            Shard("w", torch.ones(2, dtype=[torch.float32, torch.int32][rank]), (4,), (2 * rank,))
        ],
        "gap": [Shard("w", torch.ones(1), (4,), (2 * rank,))],
    }
    try:
        flexckpt.save(values[what], f"{folder}/ck")
    except flexckpt.FlexckptError as error:
        return error.code
    return "saved"


@pytest.mark.parametrize("what", ["shape", "dtype", "gap"])
def test_ranks_that_contradict_one_another(tmp_path: Path, what: str) -> None:
    assert run_ranks(contradicting, 2, str(tmp_path), what) == ["LAY105", "LAY105"]
    assert not os.listdir(tmp_path)


def test_the_reference_is_not_trivial() -> None:
    assert not torch.equal(whole("rows"), whole("rows", salt=1))
    assert wrong({"rows": torch.zeros(7, 5), "flat": whole("flat")}) == ["rows"]


def different(folder: str) -> list[str]:
    """Arguments that differ from rank to rank."""
    rank = dist.get_rank()
    codes = []
    for options in ({"to": ["hf", "flexckpt"][rank]}, {"to": "hf", "shard_size": 10 + rank}):
        try:
            flexckpt.save({"w": torch.ones(5), "v": torch.ones(4)}, f"{folder}/ck", **options)  # type: ignore[arg-type]
        except flexckpt.FlexckptError as error:
            codes.append(error.code)
    return codes


def test_different_arguments(tmp_path: Path) -> None:
    assert run_ranks(different, 2, str(tmp_path)) == [["NET102", "NET102"]] * 2
    assert not os.listdir(tmp_path)


def train_while_saving(folder: str) -> list[str]:
    """Collectives of the training and saves in the background do not get in each other's way."""
    rank = dist.get_rank()
    bad = []
    for step in range(6):
        value = torch.full((50, 3), float(step))
        shard = Shard("w", value, (100, 3), (50 * rank, 0))
        options = {"to": "hf"} if step % 2 else {}
        saving = flexckpt.save([shard], f"{folder}/{step}", async_=True, **options)  # type: ignore[arg-type]
        for _ in range(20):
            value.add_(1)
            total = torch.ones(1)
            dist.all_reduce(total)
            if total.item() != dist.get_world_size():
                bad.append(f"{step}: the training got {total}")
        saving.wait()
        target = {"w": torch.zeros(100, 3)}
        flexckpt.load(target, f"{folder}/{step}")
        if not target["w"].eq(step).all():
            bad.append(f"{step}: {target['w'].unique()}")
    return bad


def test_training_goes_on_while_saving(tmp_path: Path) -> None:
    assert run_ranks(train_while_saving, 2, str(tmp_path)) == [[], []]


def error_of_one_rank(folder: str) -> list[str]:
    """A background save fails; one rank knows it already when both save again."""
    rank = dist.get_rank()
    codes = []
    saving = flexckpt.save({"w": torch.ones(2)}, f"{folder}/file", async_=True)
    if rank == 0:
        try:
            saving.wait()
        except flexckpt.FlexckptError as error:
            codes.append(error.code)
    for _ in range(2):
        try:
            flexckpt.save({"w": torch.ones(2)}, f"{folder}/ck")
            codes.append("saved")
        except flexckpt.FlexckptError as error:
            codes.append(error.code)
    return codes


def test_an_error_that_one_rank_has_seen_already(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    first, second = run_ranks(error_of_one_rank, 2, str(tmp_path))
    assert first == ["CKP108", "NET101", "saved"]
    assert second == ["NET101", "saved"]
