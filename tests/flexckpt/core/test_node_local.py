# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Checkpoints on disks that not every rank sees: what a rank lacks comes from one that has it."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import flexckpt
from flexckpt import FlexckptError
from flexckpt.io.native import file_name
from tests.flexckpt.core.sharded import held, whole, wrong
from tests.flexckpt.processes import run_ranks

pytestmark = pytest.mark.dist


def own_folder(folder: str) -> Path:
    """Stands for a disk that only this rank sees."""
    return Path(folder) / f"disk{dist.get_rank()}"


def save_shared(folder: str, salt: int = 0) -> None:
    flexckpt.save(held(0, filled=True, salt=salt), f"{folder}/ck")


def spread(folder: Path, size: int, files: dict[int, list[int]]) -> None:
    """Give every rank a folder with the index and some of the files."""
    for rank in range(size):
        disk = folder / f"disk{rank}" / "ck"
        disk.mkdir(parents=True)
        if rank in files:
            shutil.copy(folder / "ck" / "index.json", disk)
        for number in files.get(rank, []):
            shutil.copy(folder / "ck" / file_name(number), disk)
        if rank not in files:
            disk.rmdir()


def load_own(folder: str) -> tuple[list[str], int]:
    """Load in both ways from the disk of this rank; what was wrong, and the bytes received."""
    bad, received = [], 0
    for variant in (0, 1):
        for read_once in (True, False):
            targets = held(variant, filled=False)
            report = flexckpt.load(targets, own_folder(folder) / "ck", read_once=read_once)
            bad += wrong(targets)
            received += report.stats.received
    return bad, received


@pytest.mark.parametrize(
    "files",
    [
        {0: [0], 1: [1], 2: [2]},
        {0: [0, 1], 1: [2], 2: [2, 0]},
        {0: [], 1: [0, 1, 2], 2: []},
        {2: [2, 1, 0]},
    ],
    ids=["own", "some twice", "one has all", "others see nothing"],
)
def test_files_of_other_ranks(tmp_path: Path, files: dict[int, list[int]]) -> None:
    run_ranks(save_shared, 3, str(tmp_path))
    spread(tmp_path, 3, files)
    shutil.rmtree(tmp_path / "ck")
    results = run_ranks(load_own, 3, str(tmp_path))
    assert [bad for bad, _ in results] == [[], [], []]
    assert sum(received for _, received in results) > 0


def fails(folder: str) -> tuple[str, bool]:
    """The code of the error of a load, and whether the targets are untouched."""
    targets = held(0, filled=False, states=False)
    try:
        flexckpt.load(targets, own_folder(folder) / "ck", strict={"unexpected": "ignore"})
    except FlexckptError as error:
        plain: torch.Tensor = targets["plain"]
        return error.code, bool(plain.eq(-7).all())
    return "loaded", False


def test_a_file_that_nobody_sees(tmp_path: Path) -> None:
    run_ranks(save_shared, 3, str(tmp_path))
    spread(tmp_path, 3, {0: [0], 1: [1], 2: [1, 0]})
    codes = run_ranks(fails, 3, str(tmp_path))
    assert {code for code, _ in codes} <= {"NET103", "NET101"}
    assert "NET103" in {code for code, _ in codes}
    assert all(untouched for _, untouched in codes)


def test_no_rank_sees_anything(tmp_path: Path) -> None:
    assert run_ranks(fails, 2, str(tmp_path)) == [("CKP101", True), ("CKP101", True)]


def test_disks_with_different_checkpoints(tmp_path: Path) -> None:
    run_ranks(save_shared, 2, str(tmp_path), 0)
    spread(tmp_path, 1, {0: [0]})
    run_ranks(save_shared, 2, str(tmp_path), 1)
    (tmp_path / "disk1" / "ck").mkdir(parents=True)
    for name in ("index.json", file_name(1)):
        shutil.copy(tmp_path / "ck" / name, tmp_path / "disk1" / "ck")
    assert run_ranks(fails, 2, str(tmp_path)) == [("NET102", True), ("NET102", True)]


def save_own(folder: str, options: dict[str, Any]) -> None:
    flexckpt.save(held(0, filled=True), own_folder(folder) / "ck", **options)


@pytest.mark.parametrize("to", ["flexckpt", "mapped"])
def test_saved_on_disks_of_their_own(tmp_path: Path, to: str) -> None:
    """Every rank finds the index and its own file on its disk; together they load it."""
    for again in range(2):
        run_ranks(save_own, 3, str(tmp_path), {"aoa": []} if to == "mapped" else {})
        for rank in range(3):
            disk = tmp_path / f"disk{rank}"
            assert os.listdir(disk) == ["ck"], again
            assert sorted(os.listdir(disk / "ck")) == ["index.json", file_name(rank)]
    assert [bad for bad, _ in run_ranks(load_own, 3, str(tmp_path))] == [[], [], []]


def redundant(folder: str) -> tuple[list[str], int]:
    """With redundancy a rank needs nothing but its own disk."""
    path = own_folder(folder) / "ck"
    flexckpt.save(held(0, filled=True), path, redundancy=True)
    targets = held(0, filled=False)
    report = flexckpt.load(targets, path, read_once=False)
    return wrong(targets), report.stats.received


def test_redundancy_needs_no_other_disk(tmp_path: Path) -> None:
    assert run_ranks(redundant, 3, str(tmp_path)) == [([], 0)] * 3


def save_hf_on_own_disks(folder: str) -> str:
    try:
        flexckpt.save({"w": torch.ones(3), "v": torch.ones(4)}, own_folder(folder) / "ck", to="hf")
    except FlexckptError as error:
        return error.code
    return "saved"


def test_layouts_that_need_one_folder(tmp_path: Path) -> None:
    assert run_ranks(save_hf_on_own_disks, 2, str(tmp_path)) == ["CKP108", "CKP108"]
    assert not any(os.listdir(tmp_path / f"disk{rank}") for rank in range(2))


def load_other_layouts(folder: str) -> list[str]:
    """Only the first rank sees the checkpoint, whatever its layout."""
    bad = []
    for to in ("hf", "dcp"):
        targets = {"plain": torch.zeros(4, 3).bfloat16(), "flat": torch.zeros(5, 7)}
        flexckpt.load(targets, own_folder(folder) / to)
        bad += [f"{to} {name}" for name in wrong(targets)]
    return bad


def test_other_layouts_on_the_disk_of_one_rank(tmp_path: Path) -> None:
    state = {"plain": whole("plain"), "flat": whole("flat")}
    for to in ("hf", "dcp"):
        flexckpt.save(state, tmp_path / "disk0" / to, to=to)
    assert run_ranks(load_other_layouts, 2, str(tmp_path)) == [[], []]
