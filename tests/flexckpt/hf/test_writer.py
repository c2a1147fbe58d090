# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Planned files are what the safetensors library and transformers read, cut by bytes."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.huggingface import read_index
from flexckpt.io.huggingface_writer import create_files, parse_size, plan_files
from flexckpt.model import TensorSpec
from tests.flexckpt.hf.files import stored_tensor
from tests.flexckpt.hf.test_reader import INTERCHANGED, any_tensor, bits


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    return TensorSpec(tuple(tensor.shape), tensor.dtype)


def write(folder, tensors, **options):
    plan = plan_files({name: spec_of(t) for name, t in tensors.items()}, **options)
    create_files(folder, plan)
    for file in plan.files:
        with (folder / file.name).open("r+b") as out:
            for name, entry in file.tensors.items():
                assert entry.stop - entry.start == len(bits(tensors[name]))
                out.seek(entry.start)
                out.write(bits(tensors[name]))
        assert (folder / file.name).stat().st_size == file.size
    return plan


def test_every_dtype_is_read_by_the_library(tmp_path):
    tensors = {str(d): any_tensor((3, 5), d, k) for k, d in enumerate(INTERCHANGED)}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 3), "ü/ 💡": torch.ones(2)}
    plan = write(tmp_path, tensors)
    assert [file.name for file in plan.files] == ["model.safetensors"]
    assert plan.index_text is None
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert found[name].shape == tensor.shape
        assert bits(found[name]) == bits(tensor)


def test_files_are_cut_by_bytes(tmp_path):
    sizes = {"a": 10, "b": 15, "big": 40, "c": 1, "d": 24, "e": 1}
    tensors = {name: torch.arange(float(n)) for name, n in sizes.items()}
    plan = write(tmp_path, tensors, shard_size=100)
    assert [list(file.tensors) for file in plan.files] == [["a", "b"], ["big"], ["c", "d"], ["e"]]
    assert [file.name for file in plan.files][1] == "model-00002-of-00004.safetensors"
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 4 * sum(sizes.values())
    for name, tensor in tensors.items():
        with safe_open(tmp_path / index["weight_map"][name], "pt") as file:
            assert torch.equal(file.get_tensor(name), tensor)
            assert file.metadata() == {"format": "pt"}
    ours = read_index(tmp_path)
    assert all(torch.equal(stored_tensor(ours, name), t) for name, t in tensors.items())


def test_tied_tensors_are_written_once(tmp_path):
    tensors = {"wte": torch.arange(6.0), "head": torch.arange(6.0), "x": torch.ones(2)}
    plan = write(tmp_path, tensors, aliases={"head": "wte"})
    assert sorted(plan.files[0].tensors) == ["wte", "x"]
    assert read_index(tmp_path).aliases == {"head": "wte"}


def test_no_tensors_are_an_empty_file(tmp_path):
    write(tmp_path, {})
    assert load_file(tmp_path / "model.safetensors") == {}


@given(
    st.lists(
        st.tuples(st.sampled_from(INTERCHANGED), st.lists(st.integers(0, 5), max_size=3)),
        max_size=12,
    ),
    st.integers(1, 200),
)
def test_plans_tile_their_files_and_are_as_short_as_possible(tensors, limit):
    specs = {f"t{k}": TensorSpec(tuple(shape), dtype) for k, (dtype, shape) in enumerate(tensors)}
    plan = plan_files(specs, limit)
    assert sorted(name for file in plan.files for name in file.tensors) == sorted(specs)
    last = None
    for file in plan.files:
        at = len(file.header)
        assert at % 64 == 0
        for name, entry in sorted(file.tensors.items(), key=lambda item: item[1][2:]):
            assert entry.start == at
            assert entry.start % specs[name].dtype.itemsize == 0
            assert entry.shape == specs[name].shape
            at = entry.stop
        assert at == file.size
        held = file.size - len(file.header)
        assert held <= limit or len([e for e in file.tensors.values() if e.stop > e.start]) == 1
        if last is not None:  # the first tensor of this file did not fit into the one before
            first = min(file.tensors, key=lambda name: int(name[1:]))
            n = file.tensors[first].stop - file.tensors[first].start
            assert last + n > limit
        last = held


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("5GB", 5 * 10**9), ("1.5 kb", 1500), ("2GiB", 2**31), ("7", 7), (9, 9), ("10B", 10)],
)
def test_sizes(text, bytes_):
    assert parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["", "GB", "5XB", "-5GB", "0", 0, -1, "1e9", "5 5GB", "9" * 400])
def test_sizes_that_are_none(text):
    with pytest.raises(FlexckptError, match=r"ARG101.*shard_size"):
        parse_size(text)


def test_what_safetensors_cannot_hold():
    for name, dtype in (
        ("x", torch.complex128),
        ("x", None),
        ("__metadata__", torch.float32),
        ("\ud800", torch.int8),
    ):
        with pytest.raises(CheckpointError, match="CKP109"):
            plan_files({name: TensorSpec((2,), dtype)})


def test_existing_files_are_not_overwritten(tmp_path):
    plan = write(tmp_path, {"a": torch.ones(1)})
    with pytest.raises(CheckpointError, match="CKP108"):
        create_files(tmp_path, plan)
    with pytest.raises(CheckpointError, match="CKP108"):
        create_files(tmp_path / "missing", plan)
