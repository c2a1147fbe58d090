# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The commit: whatever happens to a save, the previous checkpoint or the new one is there."""

import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import flexckpt
from flexckpt import CheckpointError
from flexckpt.io.commit import NewFolder
from flexckpt.io.leftovers import remove_leftovers
from tests.house.project import ROOT


def state(value: int) -> dict[str, torch.Tensor]:
    return {"a": torch.full((5, 3), value), "b": torch.full((), value), "c": torch.zeros(0, 2)}


def value_at(path: Path) -> int:
    targets = state(-1)
    flexckpt.load(targets, path)
    (value,) = {n for t in targets.values() for n in t.flatten().tolist()}
    return int(value)


def test_fifty_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.flexckpt.core.kill_loop", str(tmp_path / "ck"), "50"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("['ck']\n")
    assert "'left over': 0" not in done.stdout, "no kill hit a save that was going on"


@pytest.mark.parametrize("to", ["flexckpt", "hf"])
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EDQUOT"])
def test_a_disk_that_takes_no_more(
    tmp_path: Path, to: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flexckpt.save(state(1), tmp_path / "ck")

    def full(*_: object) -> int:
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(CheckpointError, match=r"CKP108.*cannot be written"):
            flexckpt.save(state(2), tmp_path / "ck", to=to)
    assert value_at(tmp_path / "ck") == 1
    assert os.listdir(tmp_path) == ["ck"]


def test_a_file_that_may_not_grow(tmp_path: Path) -> None:
    flexckpt.save(state(1), tmp_path / "ck")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"CKP108.*rank-00000.*File too large"):
            flexckpt.save({"a": torch.zeros(1 << 18)}, tmp_path / "ck")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert value_at(tmp_path / "ck") == 1
    assert os.listdir(tmp_path) == ["ck"]


def test_places_where_nothing_can_stand(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for bad in ("file", "link", "file/below", "/proc/none/ck", "/", "x" * 250, "nul\0"):
        with pytest.raises(CheckpointError, match="CKP108"):
            flexckpt.save(state(1), tmp_path / bad)
    assert (tmp_path / "file").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["file", "link"]


def test_what_is_not_a_checkpoint_is_not_replaced(tmp_path: Path) -> None:
    keep = {"notes": "todo.txt", "runs": "step-1/index.json", "trainer": "checkpoint-1/x"}
    for name, file in keep.items():
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text("mine")
    save_file({"w": torch.ones(2)}, tmp_path / "trainer" / "model.safetensors")
    for name, file in keep.items():
        with pytest.raises(CheckpointError, match=f"CKP108.*{name} is not replaced"):
            flexckpt.save(state(1), tmp_path / name)
        assert (tmp_path / name / file).read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == sorted(keep)


def test_checkpoints_and_empty_folders_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "ck").mkdir()
    flexckpt.save(state(1), tmp_path / "ck")
    assert value_at(tmp_path / "ck") == 1
    (tmp_path / "hf").mkdir()
    save_file({"w": torch.ones(2)}, tmp_path / "hf" / "model.safetensors")
    flexckpt.save(state(2), tmp_path / "hf")
    assert value_at(tmp_path / "hf") == 2
    assert sorted(os.listdir(tmp_path / "hf")) == ["index.json", "rank-00000.safetensors"]
    for to in ("hf", "dcp", "universal", "flexckpt"):
        flexckpt.save({"w": torch.full((3, 2), 5.0)}, tmp_path / "hf", to=to)
        target = torch.zeros(3, 2)
        flexckpt.load({"w": target}, tmp_path / "hf")
        assert target.eq(5).all(), to


def test_a_link_keeps_pointing(tmp_path: Path) -> None:
    flexckpt.save(state(1), tmp_path / "step-1")
    (tmp_path / "latest").symlink_to("step-1")
    flexckpt.save(state(2), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert value_at(tmp_path / "step-1") == 2
    assert sorted(os.listdir(tmp_path)) == ["latest", "step-1"]


def test_leftovers_of_this_path_alone_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / ".ck.0123456789ab.partial"
    others = [".ck2.0123456789ab.partial", ".ck.0123456789ab.partial.txt", ".ck.x.partial"]
    for name in (dead.name, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-00000.safetensors").write_text("half")
    alive = NewFolder(tmp_path / "ck")
    flexckpt.save(state(1), tmp_path / "ck")
    assert sorted(os.listdir(tmp_path)) == sorted(["ck", alive.partial.name, *others])
    alive.drop()
    assert not alive.partial.exists()


def test_a_folder_that_is_taken_for_a_leftover_is_not_committed(tmp_path: Path) -> None:
    flexckpt.save(state(1), tmp_path / "ck")
    folder = NewFolder(tmp_path / "ck")
    (folder.partial / "index.json").write_text("half")
    os.close(folder._lock)  # as if the file system had no locks across machines
    folder._lock = -1
    remove_leftovers(tmp_path / "ck")
    with pytest.raises(CheckpointError, match="CKP108"):
        folder.commit()
    folder.drop()
    assert value_at(tmp_path / "ck") == 1
    assert os.listdir(tmp_path) == ["ck"]


def test_two_writers_of_one_path(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def write(value: int) -> None:
        try:
            for _ in range(8):
                flexckpt.save(state(value), tmp_path / "ck")
        except BaseException as error:
            errors.append(error)

    # Threads stand for processes here: nothing but the files is shared.
    threads = [threading.Thread(target=write, args=(value,)) for value in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert value_at(tmp_path / "ck") in (1, 2, 3)
    assert os.listdir(tmp_path) == ["ck"]


def test_a_tiny_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        flexckpt.save(state(1), disk / "ck")
        for to in ("flexckpt", "hf", "dcp", "universal"):
            with pytest.raises(CheckpointError, match="CKP108"):
                flexckpt.save({"a": torch.rand(1 << 17)}, disk / "ck", to=to)
            assert value_at(disk / "ck") == 1
            assert os.listdir(disk) == ["ck"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
