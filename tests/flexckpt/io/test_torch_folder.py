# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files of torch.save and Hugging Face folders of them as checkpoints."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from flexckpt.errors import FlexckptError
from flexckpt.io.torch_folder import READER, read_index
from tests.flexckpt.io.whole import whole


def test_one_file(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    base = torch.arange(12.0).reshape(3, 4)
    state = {"w": base, "t": base.t(), "b": torch.randn(3).bfloat16(), "s": torch.tensor(2)}
    state["tied"] = state["w"]
    torch.save({**state, "step": 7, "args": argparse.Namespace(lr=0.5)}, path)
    assert READER.recognizes(path)
    index = read_index(path)
    assert (index.layout, index.files) == ("torch", [path])
    assert set(index.entries) == {(name, "weight") for name in state}
    for name, tensor in state.items():
        assert torch.equal(whole(index, name), tensor), name
    assert index.extra == {"step": 7, "args.lr": 0.5}


def test_a_training_file(tmp_path: Path) -> None:
    path = tmp_path / "training.pt"
    model = torch.nn.Linear(3, 2)
    states = {"weight": {"exp_avg": torch.randn(2, 3), "step": torch.tensor(4.0)}}
    torch.save({"model": model.state_dict(), "optim": {"state": states, "lrs": [1, 2]}}, path)
    index = read_index(path)
    assert torch.equal(whole(index, "model.weight"), model.weight)
    assert torch.equal(whole(index, "model.weight", "exp_avg"), states["weight"]["exp_avg"])
    assert whole(index, "model.weight", "step") == 4
    assert index.extra == {"optim.lrs": [1, 2]}


def test_a_tensor_alone_and_in_lists(tmp_path: Path) -> None:
    path = tmp_path / "tensors.pth"
    torch.save(torch.ones(3), path)
    assert torch.equal(whole(read_index(path), "tensor"), torch.ones(3))
    torch.save({"a": [torch.ones(1), {"b": torch.ones(2)}], "c": [1, "x"]}, path)
    index = read_index(path)
    assert set(index.entries) == {("a.0", "weight"), ("a.1.b", "weight")}
    assert index.extra == {"c": [1, "x"]}


def folder_of(path: Path) -> dict[str, torch.Tensor]:
    """A folder of two files and an index; one tensor is in both, another is not listed."""
    tensors = {"a": torch.randn(2, 3), "b": torch.randn(4), "c": torch.randn(1), "d": torch.ones(2)}
    first, second = "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"
    torch.save({"a": tensors["a"], "b": torch.zeros(4)}, path / first)
    torch.save({name: tensors[name] for name in "bcd"}, path / second)
    write_index(path, {"a": first, "b": second, "c": second})
    return tensors


def write_index(path: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 44}, "weight_map": weight_map}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def test_folder_with_an_index(tmp_path: Path) -> None:
    tensors = folder_of(tmp_path)
    assert READER.recognizes(tmp_path)
    for path in (tmp_path, tmp_path / "pytorch_model.bin.index.json"):
        index = read_index(path)
        assert set(index.entries) == {(name, "weight") for name in tensors}
        for name, tensor in tensors.items():
            assert torch.equal(whole(index, name), tensor), name
        assert index.extra == {"metadata": {"total_size": 44}}


def test_folder_with_one_file(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    assert READER.recognizes(tmp_path)
    assert torch.equal(whole(read_index(tmp_path), "a"), torch.ones(2))


def test_format_of_old_torch(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.arange(3)}, path, _use_new_zipfile_serialization=False)
    assert READER.recognizes(path)
    assert torch.equal(whole(read_index(tmp_path), "a"), torch.arange(3))


def code_of(path: Path) -> str:
    with pytest.raises(FlexckptError) as caught:
        read_index(path)
    return caught.value.code


@pytest.mark.parametrize("name", ["../x.bin", "/etc/passwd", "C:\\x.bin", "a/../../x.bin", ""])
def test_paths_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    write_index(tmp_path, {"a": name})
    assert code_of(tmp_path) == "CKP106"


def test_index_and_files_must_agree(tmp_path: Path) -> None:
    folder_of(tmp_path)
    second = "pytorch_model-00002-of-00002.bin"
    write_index(tmp_path, {"a": second})
    assert code_of(tmp_path) == "CKP103"
    write_index(tmp_path, {"a": "missing.bin"})
    assert code_of(tmp_path) == "CKP102"
    write_index(tmp_path, {"a": "pytorch_model-00001-of-00002.bin", "c": second})
    assert code_of(tmp_path) == "CKP202"


@pytest.mark.parametrize("weight_map", [None, [], 5, {"a": 5}, {"a": None}])
def test_weight_map_of_other_types(tmp_path: Path, weight_map: Any) -> None:
    write_index(tmp_path, weight_map)
    assert code_of(tmp_path) == "CKP103"


@pytest.mark.parametrize("text", [b"", b"{", b"\xff", b"[" * 100_000, b'{"a":1,"a":2}'])
def test_damaged_index(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "pytorch_model.bin.index.json").write_bytes(text)
    assert code_of(tmp_path) == "CKP103"


class Runs:
    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/folder",)


def test_code_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2), "evil": Runs()}, tmp_path / "pytorch_model.bin")
    assert code_of(tmp_path) == "CKP105"


def test_not_a_checkpoint(tmp_path: Path) -> None:
    assert not READER.recognizes(tmp_path)
    assert code_of(tmp_path) == "CKP101"
    other = tmp_path / "other.bin"
    other.write_bytes(b"something else")
    assert not READER.recognizes(other)
    assert not READER.recognizes(tmp_path / "missing.pt")
    assert code_of(other) == "CKP103"
    assert code_of(tmp_path / "missing.pt") == "CKP102"
