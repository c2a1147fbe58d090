# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Saves in the background: values of the call, one at a time, errors told, finished at exit."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import flexckpt
from flexckpt import CheckpointError
from flexckpt.api import save as saving
from flexckpt.io.rank_file import FileWriter
from tests.house.project import ROOT


class Gate:
    """Lets no byte be written until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.opened, self.reached = threading.Event(), threading.Event()
        write = FileWriter.write

        def held_back(writer: FileWriter, position: int, data: bytes | memoryview) -> None:
            self.reached.set()
            assert self.opened.wait(30)
            write(writer, position, data)

        patch.setattr(FileWriter, "write", held_back)


def values(*tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"t{n}": t for n, t in enumerate(tensors)}


@pytest.mark.parametrize("to", ["flexckpt", "hf"])
def test_values_are_those_of_the_call(
    tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    base = torch.arange(24.0).view(4, 6)
    live = values(base, base.t(), base[1:3, ::2], torch.ones(3).bfloat16(), torch.zeros(0, 2))
    want = {name: t.clone() for name, t in live.items()}
    extra = {"seen": [1]}
    handle = flexckpt.save(live, tmp_path / "ck", to=to, async_=True, extra=extra)
    extra["seen"].append(2)
    assert gate.reached.wait(30)
    for tensor in live.values():
        tensor.fill_(-1)
    assert not handle.done()
    assert not handle.wait(timeout=0.01)
    assert not (tmp_path / "ck").exists()
    gate.opened.set()
    assert handle.wait()
    got = {name: torch.zeros_like(t) for name, t in want.items()}
    report = flexckpt.load(got, tmp_path / "ck")
    for name, tensor in want.items():
        assert torch.equal(got[name], tensor), name
    assert to == "hf" or report.extra == {"seen": [1]}


def test_one_save_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    first = flexckpt.save(values(torch.ones(2)), tmp_path / "a", async_=True)
    begun, ended = threading.Event(), threading.Event()

    def second() -> None:
        begun.set()
        flexckpt.save(values(torch.ones(3)), tmp_path / "b", async_=True).wait()
        ended.set()

    thread = threading.Thread(target=second)
    thread.start()
    assert begun.wait(30)
    assert not ended.wait(0.1)
    assert not first.done()
    gate.opened.set()
    thread.join()
    assert first.done()
    assert ended.is_set()


def test_an_error_is_told_by_wait(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    handle = flexckpt.save(values(torch.ones(2)), tmp_path / "file", async_=True)
    with pytest.raises(CheckpointError, match="CKP108"):
        handle.wait()
    assert handle.wait(), "an error is raised once"
    flexckpt.save(values(torch.ones(2)), tmp_path / "ck")


def test_an_error_is_told_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    flexckpt.save(values(torch.ones(2)), tmp_path / "file", async_=True)
    with pytest.raises(CheckpointError, match="CKP108"):
        flexckpt.save(values(torch.ones(2)), tmp_path / "ck")
    assert not (tmp_path / "ck").exists()
    flexckpt.save(values(torch.ones(2)), tmp_path / "ck", async_=True).wait()
    assert not saving._last or saving._last.pop().wait()


PROGRAM = """
import sys, torch, flexckpt
torch.set_num_threads(1)
path, to = sys.argv[1:]
state = {f"t{n}": torch.full((1 << 12, ), float(n)) for n in range(300)}
flexckpt.save(state, path, to=to, async_=True)
"""


@pytest.mark.parametrize("to", ["flexckpt", "hf"])
def test_a_program_that_ends_finishes_its_save(tmp_path: Path, to: str) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "ck"), to]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    targets = {f"t{n}": torch.zeros(1 << 12) for n in range(300)}
    flexckpt.load(targets, tmp_path / "ck")
    assert all(bool(targets[f"t{n}"].eq(n).all()) for n in range(300))
    assert os.listdir(tmp_path) == ["ck"]


def test_a_program_that_ends_tells_of_a_failed_save(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "file"), "flexckpt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert "a save in the background failed" in done.stderr
    assert "CKP108" in done.stderr
