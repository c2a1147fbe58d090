# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Folders and files that the safetensors library and torch's distributed checkpoint wrote."""

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch.distributed.checkpoint import HuggingFaceStorageWriter, save

import flexckpt
from flexckpt.errors import CheckpointError
from flexckpt.io.huggingface import READER, read_index
from flexckpt.io.safetensors_file import DTYPES
from tests.flexckpt.hf.files import stored_tensor, write_weight_map

INTERCHANGED = [d for d in DTYPES.values() if d != torch.float8_e8m0fnu]  # safetensors has no name


def code_of(path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_index(path)
    return caught.value.code


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def any_tensor(shape, dtype, seed=0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    n = torch.Size(shape).numel() * dtype.itemsize
    data = torch.randint(0, 2, (n,), dtype=torch.uint8, generator=generator)
    return data.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", INTERCHANGED, ids=str)
def test_every_dtype_of_the_library_is_read(tmp_path, dtype):
    tensors = {
        "matrix": any_tensor((3, 5), dtype),
        "scalar": any_tensor((), dtype, 1),
        "none": any_tensor((0, 4), dtype),
        "odd": any_tensor((7,), torch.uint8, 2),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    index = read_index(tmp_path / "x.safetensors")
    assert index.layout == "safetensors"
    assert {key for key, _ in index.entries} == tensors.keys()
    for name, tensor in tensors.items():
        found = stored_tensor(index, name)
        assert found.dtype == tensor.dtype
        assert found.shape == tensor.shape
        assert bits(found) == bits(tensor)


def test_metadata_and_states(tmp_path):
    tensors = {"w": torch.ones(2), "w@exp_avg": torch.zeros(2), "w.moment2_0": torch.ones(2)}
    save_file(tensors, tmp_path / "model.safetensors", {"step": "7"})
    index = read_index(tmp_path)
    assert index.entries.keys() == {("w", "weight"), ("w", "exp_avg"), ("w", "exp_avg_sq")}
    assert index.extra["metadata"] == {"step": "7"}


def test_tied_names_that_the_library_recorded(tmp_path):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(2, 3)})
    model["b"].weight = model["a"].weight
    save_model(model, str(tmp_path / "model.safetensors"))
    index = read_index(tmp_path)
    assert index.aliases == {"b.weight": "a.weight"}
    assert ("b.weight", "weight") not in index.entries


class TestFolder:
    def two_files(self, folder, names=("model-00001-of-00002", "model-00002-of-00002")):
        save_file({"a": torch.arange(4.0), "b": torch.zeros(1)}, folder / f"{names[0]}.safetensors")
        save_file({"c": torch.arange(3.0)}, folder / f"{names[1]}.safetensors")

    def test_files_without_an_index(self, tmp_path):
        self.two_files(tmp_path)
        index = read_index(tmp_path)
        assert sorted(key for key, _ in index.entries) == ["a", "b", "c"]
        assert torch.equal(stored_tensor(index, "c"), torch.arange(3.0))

    def test_an_index_names_the_files(self, tmp_path):
        self.two_files(tmp_path)
        save_file({"a": torch.ones(9)}, tmp_path / "consolidated.safetensors")
        write_weight_map(
            tmp_path,
            {"a": "model-00001-of-00002.safetensors", "c": "model-00002-of-00002.safetensors"},
        )
        index = read_index(tmp_path)
        assert torch.equal(stored_tensor(index, "a"), torch.arange(4.0))
        # In a listed file, though not listed itself.
        assert torch.equal(stored_tensor(index, "b"), torch.zeros(1))

    def test_an_index_decides_between_equal_names(self, tmp_path):
        save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "x.safetensors")
        save_file({"a": torch.ones(1), "c": torch.zeros(1)}, tmp_path / "y.safetensors")
        assert code_of(tmp_path) == "CKP202"
        files = {"a": "y.safetensors", "b": "x.safetensors", "c": "y.safetensors"}
        write_weight_map(tmp_path, files)
        index = read_index(tmp_path)
        assert torch.equal(stored_tensor(index, "a"), torch.ones(1))
        assert len(index.entries["a", "weight"].shards) == 1

    def test_an_index_that_does_not_decide(self, tmp_path):
        save_file({"a": torch.zeros(1), "b": torch.zeros(1)}, tmp_path / "x.safetensors")
        save_file({"a": torch.ones(1), "c": torch.zeros(1)}, tmp_path / "y.safetensors")
        write_weight_map(tmp_path, {"b": "x.safetensors", "c": "y.safetensors"})
        assert code_of(tmp_path) == "CKP202"

    def test_variants_beside_the_single_file_are_not_read(self, tmp_path):
        save_file({"a": torch.zeros(1)}, tmp_path / "model.safetensors")
        save_file({"a": torch.ones(1)}, tmp_path / "model.fp16.safetensors")
        assert torch.equal(stored_tensor(read_index(tmp_path), "a"), torch.zeros(1))

    def test_single_file_and_foreign_index_must_be_told_apart(self, tmp_path):
        self.two_files(tmp_path)
        save_file({"a": torch.ones(9)}, tmp_path / "model.safetensors")
        index = write_weight_map(tmp_path, {"c": "model-00002-of-00002.safetensors"})
        assert code_of(tmp_path) == "CKP202"
        assert sorted(key for key, _ in read_index(index).entries) == ["c"]

    def test_several_indexes_must_be_told_apart(self, tmp_path):
        self.two_files(tmp_path)
        for name in ("x", "y"):
            write_weight_map(tmp_path, {"c": "model-00002-of-00002.safetensors"}, name)
        assert code_of(tmp_path) == "CKP202"

    def test_a_missing_file_is_noticed(self, tmp_path):
        self.two_files(tmp_path, ("model-00001-of-00003", "model-00003-of-00003"))
        assert code_of(tmp_path) == "CKP102"
        write_weight_map(tmp_path, {"a": "model-00002-of-00003.safetensors"})
        assert code_of(tmp_path) == "CKP102"

    def test_a_tensor_missing_from_its_file(self, tmp_path):
        self.two_files(tmp_path)
        write_weight_map(tmp_path, {"a": "model-00002-of-00002.safetensors"})
        assert code_of(tmp_path) == "CKP103"

    def test_links_of_a_download_cache_are_followed(self, tmp_path):
        blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
        blobs.mkdir()
        snapshot.mkdir(parents=True)
        save_file({"a": torch.arange(4.0)}, blobs / "0123abcd")
        (snapshot / "model.safetensors").symlink_to("../../blobs/0123abcd")
        assert torch.equal(stored_tensor(read_index(snapshot), "a"), torch.arange(4.0))

    def test_nothing_is_written_beside_the_source(self, tmp_path):
        self.two_files(tmp_path)
        before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
        read_index(tmp_path)
        assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before


def test_what_is_recognized(tmp_path):
    assert not READER.recognizes(tmp_path)
    assert not READER.recognizes(tmp_path / "missing.safetensors")
    assert code_of(tmp_path) == "CKP101"
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    assert READER.recognizes(tmp_path)
    assert READER.recognizes(tmp_path / "x.safetensors")
    (tmp_path / "x.bin").write_bytes(b"")
    assert not READER.recognizes(tmp_path / "x.bin")


def test_parts_written_by_a_distributed_checkpoint(tmp_path):
    rows = torch.arange(20.0).reshape(5, 4)
    info = '{"w": {"saved_offsets": [%d, 0]}, "b": {"saved_offsets": [0]}}'
    for rank, (a, b) in enumerate(((0, 3), (3, 5))):
        save_file(
            {"w": rows[a:b].contiguous(), "b": torch.ones(2)},
            tmp_path / f"shard-0000{rank}-model-00001-of-00001.safetensors",
            {"DCP_SHARDING_INFO": info % a},
        )
    index = read_index(tmp_path)
    assert index.entries["w", "weight"].shape == (5, 4)
    assert torch.equal(stored_tensor(index, "w"), rows)
    assert torch.equal(stored_tensor(index, "b"), torch.ones(2))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_real_distributed_checkpoint(tmp_path):
    tensors = {"w": torch.arange(20.0).reshape(5, 4), "b": torch.ones(2, dtype=torch.bfloat16)}
    writer = HuggingFaceStorageWriter(str(tmp_path), save_distributed=True)
    save(tensors, storage_writer=writer, no_dist=True)
    index = read_index(tmp_path)
    assert {key for key, _ in index.entries} == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(stored_tensor(index, name), tensor)


@pytest.mark.parametrize("info", ["[]", "x", '{"w": 1}', '{"w": {"saved_offsets": [-1, 0]}}', "{}"])
def test_parts_that_lie_nowhere(tmp_path, info):
    save_file({"w": torch.ones(2, 2)}, tmp_path / "x.safetensors", {"DCP_SHARDING_INFO": info})
    assert code_of(tmp_path) == "CKP103"


def test_every_dtype_is_loaded_converted_and_saved(tmp_path):
    tensors = {str(d): any_tensor((3, 5), d, k) for k, d in enumerate(INTERCHANGED)}
    tensors |= {"scalar": torch.tensor(2.5), "none": torch.zeros(0, 3, dtype=torch.int16)}
    save_file(tensors, tmp_path / "model.safetensors")
    flexckpt.convert(tmp_path, tmp_path.with_name("converted"), shard_size=100)
    flexckpt.save(tensors, tmp_path.with_name("saved"), to="hf", shard_size=100)
    for name in (tmp_path.name, "converted", "saved"):
        targets = {key: torch.empty_like(tensor) for key, tensor in tensors.items()}
        flexckpt.load(targets, tmp_path.with_name(name))
        for key, tensor in tensors.items():
            assert bits(targets[key]) == bits(tensor), key
