# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names that only look like states, and tensors that a mapping would lose."""

from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import flexckpt
from flexckpt import AoaError, FlexckptError

NAMES = {"sim.velocity_0": torch.ones(2), "mlp.w_0": torch.zeros(3), "x@step": torch.ones(1)}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.parametrize("kind", ["hf", "dcp", "torch"])
def test_a_state_needs_its_parameter_beside_it(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "source"
    if kind == "hf":
        source.mkdir()
        save_file(NAMES, source / "model.safetensors")
    elif kind == "dcp":
        dcp.save(dict(NAMES), checkpoint_id=source)
    else:
        source = tmp_path / "source.pt"
        torch.save(NAMES, source)
    flexckpt.convert(source, tmp_path / "out")
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert got.keys() == NAMES.keys()
    assert all(torch.equal(got[name], NAMES[name]) for name in NAMES)
    targets = {name: torch.full_like(tensor, -7) for name, tensor in NAMES.items()}
    flexckpt.load(targets, source)
    assert all(torch.equal(targets[name], NAMES[name]) for name in NAMES)


def test_a_layout_of_weights_refuses_what_has_none(tmp_path: Path) -> None:
    with pytest.raises(FlexckptError, match=r"'sub' has no weight"):
        flexckpt.save({"sub.w_0": torch.ones(2)}, tmp_path / "out", to="hf")
    assert not (tmp_path / "out").exists()


def test_a_tensor_that_is_overwritten_unread_is_unexpected(tmp_path: Path) -> None:
    flexckpt.save({"a": torch.ones(2), "b": torch.zeros(2)}, tmp_path / "c")
    aoa = "a -> c\nb -> c"
    with pytest.raises(AoaError, match=r"AOA308.* a of the source is used by nothing"):
        flexckpt.load({"c": torch.full((2,), 5.0)}, tmp_path / "c", aoa=aoa)
    with pytest.raises(AoaError, match="AOA308"):
        flexckpt.convert(tmp_path / "c", tmp_path / "out", aoa=aoa)
    got = torch.full((2,), 5.0)
    report = flexckpt.load({"c": got}, tmp_path / "c", aoa=aoa, strict={"unexpected": "ignore"})
    assert report.unexpected == ["a"]
    assert not got.any()  # the last one wins


def test_tied_targets_want_the_same_values(tmp_path: Path) -> None:
    flexckpt.save({"a": torch.ones(2), "b": torch.zeros(2), "c": torch.ones(2)}, tmp_path / "c")
    tied = torch.full((2,), 5.0)
    flexckpt.load({"a": tied, "c": tied}, tmp_path / "c", strict={"unexpected": "ignore"})
    assert torch.equal(tied, torch.ones(2))
    with pytest.raises(FlexckptError, match=r"'b' and 'a' share their memory"):
        flexckpt.load({"a": tied, "b": tied, "c": torch.zeros(2)}, tmp_path / "c")


def test_states_may_be_missing_where_that_is_allowed(tmp_path: Path) -> None:
    flexckpt.save({"w": torch.ones(2)}, tmp_path / "c")
    targets = {"w": torch.zeros(2), "w@exp_avg": torch.full((2,), 5.0)}
    with pytest.raises(FlexckptError, match="exp_avg"):
        flexckpt.load(targets, tmp_path / "c")
    report = flexckpt.load(targets, tmp_path / "c", strict={"missing": "ignore"})
    assert report.missing == ["w@exp_avg"]
    assert targets["w"].tolist() == [1, 1]
    assert targets["w@exp_avg"].tolist() == [5, 5]


@pytest.mark.parametrize("aoa", [Path("x"), 5, {"aoa_statements": []}])
def test_a_program_is_text(aoa: object) -> None:
    with pytest.raises(AoaError, match=r"AOA102.*a program is text or a list of statements"):
        flexckpt.transform({"a": torch.ones(2)}, aoa)


def test_a_step_that_is_not_known_is_told(tmp_path: Path) -> None:
    moments = {"w": torch.ones(2), "w@exp_avg": torch.ones(2), "w@exp_avg_sq": torch.ones(2)}
    with pytest.warns(UserWarning, match="no step of the optimizer"):
        flexckpt.save(moments, tmp_path / "u", to="universal")
    flexckpt.save({**moments, "w@step": torch.tensor(3.0)}, tmp_path / "u", to="universal")
    got = torch.zeros(())
    flexckpt.load({"w@step": got}, tmp_path / "u", strict={"unexpected": "ignore"})
    assert got == 3
