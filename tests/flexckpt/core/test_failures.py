# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A rank that fails, dies or sleeps: the others get an error soon, and nothing is half written."""

import errno
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import flexckpt
from flexckpt import FlexckptError, Shard, TransferError
from tests.flexckpt.processes import run_ranks, run_to_outcomes

pytestmark = pytest.mark.dist


def halves(value: float) -> list[Shard]:
    """The rows of this rank of a tensor, and tensors that all ranks hold."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return [
        Shard("w", torch.full((4, 6), value), (4 * size, 6), (4 * rank, 0)),
        *(Shard(f"all{n}", torch.full((3, 5), value), (3, 5), (0, 0)) for n in range(size)),
    ]


def crossed(value: float) -> list[Shard]:
    """The same tensors, cut along the other axis, so that ranks need one another."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return [
        Shard("w", torch.full((4 * size, 2), value), (4 * size, 6), (0, 2 * rank)),
        *(Shard(f"all{n}", torch.full((3, 5), value), (3, 5), (0, 0)) for n in range(size)),
    ]


def load(path: str, **options: Any) -> None:
    targets = crossed(-1.0)
    flexckpt.load(targets, path, **options)
    assert all(s.tensor.eq(1.0).all() for s in targets)


def save(path: str, **options: Any) -> None:
    flexckpt.save(halves(1.0), path, **options).wait()


def save_hf(path: str, **options: Any) -> None:
    flexckpt.save(halves(1.0), path, to="hf", **options)


def save_later(path: str, **options: Any) -> None:
    flexckpt.save(halves(1.0), path, async_=True, **options).wait()


def sync(path: str, **options: Any) -> None:
    targets = crossed(-1.0)
    aoa = None if options else f"# {time.monotonic()}"  # planned anew every time
    flexckpt.sync(halves(1.0), targets, aoa=aoa, **options)
    assert all(s.tensor.eq(1.0).all() for s in targets)


def full_params(path: str, **options: Any) -> None:
    for _, tensor in flexckpt.full_params(halves(1.0), aoa=f"# {time.monotonic()}", **options):
        assert tensor.eq(1.0).all()


def convert(path: str, **options: Any) -> None:
    flexckpt.convert(path, f"{path}-hf", **options)


OPERATIONS: dict[str, Callable[..., None]] = {
    f.__name__: f for f in (load, save, save_hf, save_later, sync, full_params, convert)
}
# Operation -> what goes wrong on one rank: function and error.
BROKEN: dict[str, dict[str, Exception]] = {
    "load": {
        "flexckpt.api.load.shards_in": KeyError("program error"),
        "flexckpt.api.load.read_index": OSError(errno.EIO, "bad disk"),
        "flexckpt.api.load.compile_program": RuntimeError("no memory"),
        "flexckpt.api.load.make_plan": IndexError("program error"),
        "flexckpt.collect._boxes": AttributeError("program error"),
        "flexckpt.io.ranged.FilePool.__getitem__": flexckpt.CheckpointError("CKP102", "gone"),
        "flexckpt.io.ranged.RangedFile.view": OSError(errno.EIO, "bad disk"),
        "flexckpt.execute.MemorySource.view": MemoryError("while sharing"),
    },
    "save": {
        "flexckpt.api.save.shards_in": ZeroDivisionError("program error"),
        "flexckpt.io.shard_files.new_header": IndexError("program error"),
        "flexckpt.io.rank_file.FileWriter.__init__": flexckpt.CheckpointError("CKP108", "full"),
        "flexckpt.io.rank_file.FileWriter.write": OSError(errno.ENOSPC, "full"),
        "flexckpt.io.rank_file.FileWriter.close": flexckpt.CheckpointError("CKP108", "full"),
    },
    "save_hf": {
        "flexckpt.save_mapped.compile_program": RuntimeError("program error"),
        "flexckpt.export.make_plan": KeyError("program error"),
        "flexckpt.execute.MemorySource.view": MemoryError("none left"),
        "flexckpt.io.rank_file.FileWriter.write": OSError(errno.ENOSPC, "full"),
        "flexckpt.io.sinks.overlapped": IndexError("program error"),
    },
    "save_later": {
        "flexckpt.api.save.snapshot": MemoryError("none left"),
        "flexckpt.io.rank_file.FileWriter.write": OSError(errno.ENOSPC, "full"),
    },
    "sync": {
        "flexckpt.api.sync.make_plan": AssertionError("program error"),
        "flexckpt.collect._boxes": AttributeError("program error"),
        "flexckpt.execute.MemorySource.view": MemoryError("none left"),
    },
    "full_params": {
        "flexckpt.api.full_params.make_plan": AssertionError("program error"),
        "flexckpt.execute.MemorySource.view": MemoryError("none left"),
    },
    "convert": {
        "flexckpt.api.load.read_index": OSError(errno.EIO, "bad disk"),
        "flexckpt.export.make_plan": KeyError("program error"),
        "flexckpt.io.ranged.FilePool.__getitem__": flexckpt.CheckpointError("CKP102", "gone"),
        "flexckpt.io.rank_file.FileWriter.write": OSError(errno.ENOSPC, "full"),
        "flexckpt.io.sinks.overlapped": IndexError("program error"),
    },
}


def break_everything(name: str, path: str, victim: int) -> list[str]:
    """Let the operation fail in every way on one rank, and work in between; what was not right."""
    operation, rank = OPERATIONS[name], dist.get_rank()
    bad = []
    for place, failure in BROKEN[name].items():
        begun = time.monotonic()
        broken = patch(place, side_effect=failure) if rank == victim else nullcontext()
        got: Exception | None = None
        with broken:
            try:
                operation(path)
            except Exception as error:
                got = error
        took = time.monotonic() - begun
        if rank == victim:
            right = type(got) is type(failure)
        else:
            right = isinstance(got, TransferError) and got.code == "NET101"
            right = right and f"rank {victim} failed" in str(got)
        if not right or took > 20:
            bad.append(f"{place} on rank {rank}: {got!r} after {took:.1f} s")
        operation(path)  # the ranks are still together
    return bad


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("name", OPERATIONS)
def test_one_rank_fails(tmp_path: Path, name: str, victim: int) -> None:
    path = str(tmp_path / "ck")
    run_ranks(save, 3, path)
    assert run_ranks(break_everything, 3, name, path, victim, timeout=120) == [[], [], []]
    run_ranks(load, 3, path)
    assert not [n for n in os.listdir(tmp_path) if n.endswith(".partial")]


def commit_fails(path: str) -> str:
    rank = dist.get_rank()
    broken = patch("flexckpt.io.commit._put", side_effect=OSError(errno.EROFS, "read only"))
    with broken if rank == 0 else nullcontext():
        try:
            save(path)
        except FlexckptError as error:
            return error.code
    return "saved"


def test_a_commit_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "ck"
    path.mkdir()
    assert run_ranks(commit_fails, 2, str(path)) == ["CKP108", "NET101"]
    assert os.listdir(tmp_path) == ["ck"]
    assert not os.listdir(path)


def different_values(path: str) -> list[str]:
    """Targets of one rank that do not fit; a file that only one rank misses."""
    rank = dist.get_rank()
    codes = []
    for targets in (
        {"w": 3 if rank else torch.zeros(8, 6), "all0": torch.zeros(3, 5)},
        {"w": torch.zeros(8 + rank, 6), "all0": torch.zeros(3, 5)},
        {"w": torch.zeros(8, 6), "all0": torch.zeros(3, 5).to([torch.float32, torch.int8][rank])},
    ):
        try:
            flexckpt.load({**targets, "all1": torch.zeros(3, 5)}, path)
        except FlexckptError as error:
            codes.append(error.code)
    return codes


def test_targets_that_do_not_fit_on_one_rank(tmp_path: Path) -> None:
    run_ranks(save, 2, str(tmp_path / "ck"))
    first, second = run_ranks(different_values, 2, str(tmp_path / "ck"))
    assert second[0] == "LAY104"
    assert first[0] == "NET101"
    assert first[1:] == second[1:] == ["LAY105", "LAY105"]


def lose_a_rank(name: str, path: str, place: str, how: str, victim: int = 1) -> tuple[str, float]:
    """One rank stops in the middle; how the others end, and after how long."""

    def stop(*_: Any, **__: Any) -> None:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(8)
        raise RuntimeError("awake again")

    begun = time.monotonic()
    with patch(place, side_effect=stop) if dist.get_rank() == victim else nullcontext():
        try:
            OPERATIONS[name](path, timeout=3.0)
        except Exception as error:
            code = error.code if isinstance(error, FlexckptError) else type(error).__name__
            return code, time.monotonic() - begun
    return "done", time.monotonic() - begun


LOST = {
    "load": "flexckpt.io.ranged.RangedFile.view",
    "save": "flexckpt.io.rank_file.FileWriter.write",
    "save_hf": "flexckpt.execute.MemorySource.view",
    "sync": "flexckpt.execute.MemorySource.view",
}


@pytest.mark.parametrize("name", LOST)
def test_a_rank_is_killed(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "ck")
    run_ranks(save, 3, path)
    outcomes = run_to_outcomes(lose_a_rank, 3, name, path, LOST[name], "kill")
    assert outcomes[1].died
    for rank in (0, 2):
        code, took = outcomes[rank].value
        assert code in ("NET101", "NET104")
        assert took < 15
    run_ranks(load, 3, path)
    run_ranks(save, 3, path)
    assert os.listdir(tmp_path) == ["ck"]


def test_the_rank_that_commits_is_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "ck")
    run_ranks(save, 2, path)
    place = "flexckpt.io.commit.sync_folder"
    outcomes = run_to_outcomes(lose_a_rank, 2, "save", path, place, "kill", 0)
    assert outcomes[0].died
    assert outcomes[1].value[0] in ("NET101", "NET104")
    run_ranks(load, 2, path)
    run_ranks(save, 2, path)
    run_ranks(load, 2, path)
    assert os.listdir(tmp_path) == ["ck"]


@pytest.mark.parametrize("name", ["load", "save"])
def test_a_rank_that_sleeps(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / "ck")
    run_ranks(save, 3, path)
    outcomes = run_to_outcomes(lose_a_rank, 3, name, path, LOST[name], "sleep")
    codes = [outcome.value[0] for outcome in outcomes]
    assert codes[0] in ("NET101", "NET104")
    assert codes[2] in ("NET101", "NET104")
    assert "NET104" in codes
    assert "done" not in codes
    assert all(outcomes[rank].value[1] < 15 for rank in (0, 2))
    run_ranks(load, 3, path)
    assert os.listdir(tmp_path) == ["ck"]
