# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tied tensors: written once in Hugging Face's layout, and filled under all their names."""

from pathlib import Path

import torch
from safetensors import safe_open

import flexckpt
from flexckpt.index import SourceIndex
from flexckpt.io.detect import read_index


def test_a_tied_tensor_is_written_once_and_read_under_both_names(tmp_path: Path) -> None:
    emb = torch.arange(6.0).view(3, 2)
    flexckpt.save({"emb": emb, "head": emb, "same": emb.clone()}, tmp_path / "hf", to="hf")
    with safe_open(tmp_path / "hf" / "model.safetensors", "pt") as file:
        assert sorted(file.keys()) == ["emb", "same"]
    got = {name: torch.zeros(3, 2) for name in ("emb", "head", "same")}
    flexckpt.load(got, tmp_path / "hf")
    assert all(torch.equal(tensor, emb) for tensor in got.values())


def test_a_view_of_another_shape_is_not_tied(tmp_path: Path) -> None:
    emb = torch.arange(6.0)
    flexckpt.save({"emb": emb, "part": emb[:3], "t": emb.view(3, 2)}, tmp_path / "hf", to="hf")
    assert set(read_index(tmp_path / "hf").specs()) == {"emb", "part", "t"}


def test_an_alias_passes_through_a_conversion(tmp_path: Path) -> None:
    emb = torch.arange(6.0)
    flexckpt.save({"emb": emb, "head": emb}, tmp_path / "hf", to="hf")
    flexckpt.convert(tmp_path / "hf", tmp_path / "again")
    index: SourceIndex = read_index(tmp_path / "again")
    assert index.aliases == {"head": "emb"}
    assert set(index.specs()) == {"emb"}


def test_a_mapping_may_speak_of_an_alias(tmp_path: Path) -> None:
    emb = torch.arange(6.0).view(3, 2)
    flexckpt.save({"emb": emb, "head": emb}, tmp_path / "hf", to="hf")
    got = {"e": torch.zeros(3, 2), "h": torch.zeros(2, 3)}
    flexckpt.load(got, tmp_path / "hf", aoa="emb -> e\nhead^T -> h")
    assert torch.equal(got["h"], emb.t())
    flexckpt.convert(tmp_path / "hf", tmp_path / "own", aoa="head^T -> h", to="flexckpt")
    assert set(read_index(tmp_path / "own").specs()) == {"emb", "h"}
