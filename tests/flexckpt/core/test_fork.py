# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Saves that a forked process writes: the values are those of the call, and errors come back."""

import os
import pickle
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import flexckpt
from flexckpt import AoaError, CheckpointError, FlexckptError, Shard
from flexckpt.forked import ForkedFiles
from tests.flexckpt.processes import run_ranks


@pytest.mark.parametrize("to", ["flexckpt", "dcp"])
def test_the_values_are_those_of_the_call(tmp_path: Path, to: str) -> None:
    big = torch.arange(300_000.0)
    state = {"big": big.clone(), "t": torch.arange(6.0).view(2, 3).t(), "e": torch.zeros(0, 2)}
    want = {name: tensor.clone() for name, tensor in state.items()}
    saving = flexckpt.save(state, tmp_path / "c", to=to, async_="fork", extra={"step": 3})
    for tensor in state.values():
        tensor.fill_(-1)
    assert saving.wait()
    got = {name: torch.full_like(tensor, -7) for name, tensor in want.items()}
    assert flexckpt.load(got, tmp_path / "c").extra["step"] == 3
    assert all(torch.equal(got[name], want[name]) for name in want)
    if to == "flexckpt":
        flexckpt.verify(tmp_path / "c")


def test_an_error_of_the_child_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flexckpt.save({"a": torch.zeros(2)}, tmp_path / "c")

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)  # the child inherits it
    saving = flexckpt.save({"a": torch.ones(2)}, tmp_path / "c", async_="fork")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"CKP108.*No space left"):
        saving.wait()
    got = torch.full((2,), -7.0)
    flexckpt.load({"a": got}, tmp_path / "c")
    assert not got.any()
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_child_that_dies_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*args: object) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    monkeypatch.setattr(os, "pwrite", die)
    saving = flexckpt.save({"a": torch.ones(2)}, tmp_path / "c", async_="fork")
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"CKP108.*died"):
        saving.wait()
    assert not list(tmp_path.iterdir())


def test_a_child_that_hangs_is_given_up(tmp_path: Path) -> None:
    class Sleeper:
        def write(self, folder: Path, rank: int, shards: object) -> object:
            signal.pause()
            return None

        def finish(self, folder: Path, records: object) -> None:
            raise AssertionError

    files = ForkedFiles(Sleeper(), 0, [], 0.5)
    child = files.pid
    os.kill(child, 0)  # it is there
    with pytest.raises(CheckpointError, match="did not answer"):
        files.write(tmp_path, 0, [])
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.parametrize("options", [{"to": "hf"}, {"aoa": "a -> b"}])
def test_what_must_be_put_together_is_not_forked(tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(FlexckptError, match="ARG101"):
        flexckpt.save({"a": torch.ones(2)}, tmp_path / "c", async_="fork", **options)


def two_ranks(folder: str) -> None:
    rank = dist.get_rank()
    rows = torch.full((2, 3), float(rank))
    saving = flexckpt.save([Shard("w", rows, (4, 3), (2 * rank, 0))], f"{folder}/c", async_="fork")
    rows.fill_(9)
    saving.wait()
    got = torch.empty(4, 3)
    flexckpt.load({"w": got}, f"{folder}/c")
    assert got[:, 0].tolist() == [0, 0, 1, 1]


@pytest.mark.dist
def test_on_two_ranks(tmp_path: Path) -> None:
    run_ranks(two_ranks, 2, str(tmp_path))


def test_errors_travel() -> None:
    first = CheckpointError("CKP108", "no room")
    second = AoaError("AOA301", "no b", statement=1, line=2, column=3, excerpt="b\n^")
    for error in (first, second):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert vars(back) == vars(error)
