# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Universal checkpoints: those of DeepSpeed's converter, and those that flexckpt writes."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch

import flexckpt
from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed import READER_UNIVERSAL, READER_ZERO
from tests.flexckpt.deepspeed.gather import gather
from tests.flexckpt.deepspeed.jobs import CONVERTED, UNIVERSAL
from tests.flexckpt.deepspeed.made import made

pytestmark = pytest.mark.dist

STATES = ("exp_avg", "exp_avg_sq", "step")


@pytest.mark.parametrize("name", UNIVERSAL)
def test_what_deepspeed_converts_is_what_it_was(name: str) -> None:
    path = made().root / f"{name}_universal"
    assert READER_UNIVERSAL.recognizes(path)
    assert not READER_ZERO.recognizes(path)
    assert READER_UNIVERSAL.recognizes(path / "step")
    assert not READER_ZERO.recognizes(path / "step")
    index, source = READER_UNIVERSAL.read_index(path), READER_ZERO.read_index(made().root / name)
    for state in STATES:
        found, expected = gather(index, state), gather(source, state)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    found = {**gather(index, "weight"), **gather(index, "master")}
    expected = {**gather(source, "weight"), **gather(source, "master")}
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor), key
    assert index.aliases == source.aliases
    for kept in ("client_state", "param_groups", "global_steps"):
        assert index.extra[kept] == source.extra[kept]


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_written_is_read_again(name: str) -> None:
    index = READER_UNIVERSAL.read_index(made().root / f"{name}_written")
    source = READER_ZERO.read_index(made().root / name)
    for state in STATES:
        found, expected = gather(index, state), gather(source, state)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], tensor) for key, tensor in expected.items())
    found = {**gather(index, "weight"), **gather(index, "master")}
    for key, tensor in {**gather(source, "weight"), **gather(source, "master")}.items():
        assert torch.equal(found[key], tensor), key
    for kept in ("client_state", "param_groups", "global_steps"):
        assert index.extra[kept] == source.extra[kept]


@pytest.mark.parametrize("name", CONVERTED)
def test_files_hold_no_more_than_their_tensor(name: str) -> None:
    root = made().root / f"{name}_written"
    tag = (root / "latest_universal").read_text()
    file = root / tag / "zero" / "up.weight" / "fp32.pt"
    assert file.stat().st_size < 2000
    held = torch.load(file, weights_only=True)
    assert held["param"].shape == (5, 7)
    assert held["param"].dtype == torch.float32


def test_weights_alone(tmp_path: Path) -> None:
    """Without states of an optimizer, tensors keep their dtypes, whatever these are."""
    state = {
        "w": torch.randn(3, 5).bfloat16(),
        "empty": torch.zeros(0, 3),
        "ids": torch.arange(4),
        "scale": torch.tensor(2.5),
        "cut": torch.randn(5, 4).t(),
    }
    flexckpt.save(state, tmp_path / "u", to="universal").wait()
    index = READER_UNIVERSAL.read_index(tmp_path / "u")
    found = gather(index, "weight")
    assert found.keys() == state.keys()
    for key, tensor in state.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(found[key], tensor)


def test_a_name_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"CKP108.*'a/b'"):
        flexckpt.save({"a/b": torch.zeros(2)}, tmp_path / "u", to="universal").wait()
    assert not (tmp_path / "u").exists()


def test_a_state_of_another_shape(tmp_path: Path) -> None:
    zero = tmp_path / "zero" / "w"
    zero.mkdir(parents=True)
    torch.save({"param": torch.zeros(3, 2)}, zero / "fp32.pt")
    torch.save({"param": torch.zeros(2, 3)}, zero / "exp_avg.pt")
    with pytest.raises(CheckpointError, match=r"CKP202.*\(2, 3\).*\(3, 2\)"):
        READER_UNIVERSAL.read_index(tmp_path)


JUNK = [None, 3, "text", [1], [{}], {"a": 1}, {0: [2]}, [[1, 2], "x"], [{"params": 5}]]


@pytest.mark.parametrize("value", JUNK, ids=str)
@pytest.mark.parametrize(
    "field",
    [
        "param_groups",
        "optimizer_state_dict",
        "buffer_names",
        "shared_params",
        "param_shapes",
        "module",
    ],
)
def test_junk_is_read_or_refused(field: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "zero" / "w").mkdir(parents=True)
    torch.save({"param": torch.zeros(3)}, tmp_path / "zero" / "w" / "fp32.pt")
    model = {"module": {}, "buffer_names": [], "param_shapes": [{"w": (3,)}], field: value}
    torch.save(model, tmp_path / "mp_rank_00_model_states.pt")
    torch.save({"param_groups": [{}], field: value}, tmp_path / "zero" / "optimizer_state.pt")
    with contextlib.suppress(CheckpointError):
        assert READER_UNIVERSAL.read_index(tmp_path).entries["w", "weight"].shape == (3,)


@pytest.mark.parametrize("value", [*JUNK, {"param": None}, torch.zeros(2)], ids=str)
@pytest.mark.parametrize("state", ["fp32", "step", "exp_avg"])
def test_junk_in_a_state(state: str, value: Any, tmp_path: Path) -> None:
    (tmp_path / "zero" / "w").mkdir(parents=True)
    torch.save({"param": torch.zeros(3)}, tmp_path / "zero" / "w" / "fp32.pt")
    torch.save(value, tmp_path / "zero" / "w" / f"{state}.pt")
    if state == "step" and isinstance(value, int):
        assert READER_UNIVERSAL.read_index(tmp_path).extra["optimizer_numbers"] == {"step": 3}
    elif state == "fp32" and isinstance(value, torch.Tensor):
        assert READER_UNIVERSAL.read_index(tmp_path).entries["w", "weight"].shape == (2,)
    else:
        with pytest.raises(CheckpointError, match=f"CKP.*{state}.pt"):
            READER_UNIVERSAL.read_index(tmp_path)


def test_missing_weights(tmp_path: Path) -> None:
    for name in ("v", "w"):
        (tmp_path / "zero" / name).mkdir(parents=True)
    torch.save({"param": torch.zeros(3)}, tmp_path / "zero" / "v" / "fp32.pt")
    torch.save({"param": torch.zeros(3)}, tmp_path / "zero" / "w" / "exp_avg.pt")
    with pytest.raises(CheckpointError, match=r"CKP102.*w.fp32.pt"):
        READER_UNIVERSAL.read_index(tmp_path)


def test_a_marker_that_leads_away(tmp_path: Path) -> None:
    (tmp_path / "latest_universal").write_text("../elsewhere")
    with pytest.raises(CheckpointError, match="CKP106"):
        READER_UNIVERSAL.read_index(tmp_path)
