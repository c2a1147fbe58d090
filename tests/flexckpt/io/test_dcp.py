# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Distributed checkpoints that torch wrote are read as torch reads them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.dcp import READER, read_index
from flexckpt.io.dcp_names import present_names, stored_name
from tests.flexckpt.io.dcp_jobs import (
    globals_of_the_test,
    save_as_safetensors,
    save_by_rank,
    save_sharded,
    save_training,
)
from tests.flexckpt.io.whole import whole
from tests.flexckpt.processes import run_ranks

# torch warns of every save and load in a single process.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def save(path: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_are_put_together(tmp_path: Path, ranks: int) -> None:
    run_ranks(save_sharded, ranks, tmp_path)
    assert READER.recognizes(tmp_path)
    index = read_index(tmp_path)
    want = globals_of_the_test()
    assert set(index.entries) == {(f"model.{name}", "weight") for name in want}
    for name, tensor in want.items():
        found = whole(index, f"model.{name}")
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor), name
    assert len(index.entries["model.rows", "weight"].shards) == ranks
    assert index.specs()["model.rows"].shards is None  # no macro may count ranks of FSDP
    assert index.extra == {
        "settings.step": 7,
        "settings.betas": [0.9, 0.95],
        "settings.name": "tiny",
    }


@pytest.mark.dist
def test_safetensors_format(tmp_path: Path) -> None:
    run_ranks(save_as_safetensors, 2, tmp_path)
    index = read_index(tmp_path)
    want = globals_of_the_test()
    for name in ("rows", "columns", "flags", "scalar"):
        assert torch.equal(whole(index, name), want[name]), name
    assert index.extra == {"step": 7}


@pytest.mark.dist
def test_metadata_of_every_rank(tmp_path: Path) -> None:
    run_ranks(save_by_rank, 2, tmp_path)
    assert not (tmp_path / ".metadata").exists()
    index = read_index(tmp_path)
    for name, tensor in globals_of_the_test().items():
        assert torch.equal(whole(index, name), tensor), name


@pytest.mark.dist
@pytest.mark.parametrize("flatten", [False, True])
def test_optimizer_states_have_the_key_of_their_parameter(tmp_path: Path, flatten: bool) -> None:
    want = run_ranks(save_training, 2, tmp_path, flatten)[0]
    index = read_index(tmp_path)
    prefix = "" if flatten else "model."
    assert set(index.entries) == {(prefix + k, s) for k, states in want.items() for s in states}
    for key, states in want.items():
        for state, tensor in states.items():
            assert torch.equal(whole(index, prefix + key, state), tensor), (key, state)
    lr = "param_groups.0.weight.lr" if flatten else "optim.param_groups.0.lr"
    assert index.extra[lr] == 0.125


def test_non_contiguous_tensor_in_a_file(tmp_path: Path) -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    index = read_index(save(tmp_path, {"t": tensor.t()}))
    assert torch.equal(whole(index, "t"), tensor.t())
    (shard,) = index.entries["t", "weight"].shards
    assert index.resolve is not None
    assert index.resolve(shard).strides == (1, 4)


def test_of_many_objects_the_shallow_ones_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = {f"layer.{k}.weight": {"lr": k, "eps": 0.5} for k in range(5)}
    save(tmp_path, {"step": 7, "a": torch.ones(1), "groups": groups, "epoch": 3})
    assert len(read_index(tmp_path).extra) == 12
    monkeypatch.setattr("flexckpt.io.dcp._MOST_OBJECTS", 4)
    extra = read_index(tmp_path).extra
    assert len(extra) == 4
    assert (extra["step"], extra["epoch"]) == (7, 3)


def test_names() -> None:
    paths = {
        "m.a.w": ("m", "a.w"),
        "m.b.w": ("m", "b.w"),
        "o.state.a.w.exp_avg": ("o", "state", "a.w", "exp_avg"),
        "o.state.a.w.mine": ("o", "state", "a.w", "mine"),
        "o.state.c.w.step": ("o", "state", "c.w", "step"),
        "o.state.c.w.mine": ("o", "state", "c.w", "mine"),
        "o.state.0.step": ("o", "state", "0", "step"),
    }
    names = [*paths, "state.b.w.exp_avg_sq", "w@exp_avg", "app.state.x.y"]
    assert present_names(names, paths) == {
        "m.a.w": ("m.a.w", "weight"),
        "m.b.w": ("m.b.w", "weight"),
        "o.state.a.w.exp_avg": ("m.a.w", "exp_avg"),
        "o.state.a.w.mine": ("m.a.w", "mine"),
        "o.state.c.w.step": ("c.w", "step"),
        "o.state.c.w.mine": ("o.state.c.w.mine", "weight"),
        "o.state.0.step": ("o.state.0.step", "weight"),
        "state.b.w.exp_avg_sq": ("m.b.w", "exp_avg_sq"),
        "w@exp_avg": ("w@exp_avg", "weight"),  # there is no w
        "app.state.x.y": ("app.state.x.y", "weight"),
    }


def test_ambiguous_names_stay_as_they_are() -> None:
    names = ["model.w", "ema.w", "state.w.exp_avg"]
    assert present_names(names, {})["state.w.exp_avg"] == ("state.w.exp_avg", "weight")
    two = ["w", "one.state.w.exp_avg", "two.state.w.exp_avg"]
    assert present_names(two, {}) == {name: (name, "weight") for name in two}


@pytest.mark.parametrize("state", ["weight", "exp_avg", "step", "master", "mine"])
def test_stored_names_are_read_back(state: str) -> None:
    name = stored_name("a.b.w", state)
    want = (name, "weight") if state == "mine" else ("a.b.w", state)
    assert present_names([name, "a.b.w"] if state != "weight" else [name], {})[name] == want


def code_of(path: Path) -> str:
    with pytest.raises(FlexckptError) as caught:
        resolve_all(path)
    assert str(path) in str(caught.value)
    return caught.value.code


def resolve_all(path: Path) -> None:
    index = read_index(path)
    assert index.resolve is not None
    for entry in index.entries.values():
        for shard in entry.shards:
            index.resolve(shard)


def change_metadata(path: Path, change: Any) -> None:
    file = path / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))


def test_no_checkpoint(tmp_path: Path) -> None:
    assert not READER.recognizes(tmp_path)
    assert not READER.recognizes(tmp_path / "missing")
    assert code_of(tmp_path) == "CKP101"


def test_missing_and_truncated_files(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)})
    file = tmp_path / "__0_0.distcp"
    data = file.read_bytes()
    for end in (0, 100, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:end])
        assert code_of(tmp_path) == "CKP103"
    file.unlink()
    assert code_of(tmp_path) == "CKP102"


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/../../b", "C:\\x", "", 5])
def test_paths_outside_of_the_folder(tmp_path: Path, name: Any) -> None:
    save(tmp_path, {"a": torch.ones(3)})

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = name

    change_metadata(tmp_path, change)
    assert code_of(tmp_path) == "CKP106"


def test_contradictions(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3, 2), "b": torch.ones(2, 3)})
    whole_file = (tmp_path / ".metadata").read_bytes()

    def swap(metadata: Any) -> None:
        first, second = metadata.storage_data.values()
        first.offset, second.offset = second.offset, first.offset

    def outside(metadata: Any) -> None:
        metadata.state_dict_metadata["a"].chunks[0].sizes = torch.Size([4, 2])

    def negative(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.offset = -1

    def nowhere(metadata: Any) -> None:
        metadata.storage_data.clear()

    def other_dtype(metadata: Any) -> None:
        metadata.state_dict_metadata["a"].properties.dtype = torch.int32

    for change in (swap, outside, negative, nowhere, other_dtype):
        (tmp_path / ".metadata").write_bytes(whole_file)
        change_metadata(tmp_path, change)
        assert code_of(tmp_path) == "CKP103", change


def test_transformed_parts_are_refused(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3)})

    def change(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.transform_descriptors = ["stream.zstd"]

    change_metadata(tmp_path, change)
    assert code_of(tmp_path) == "CKP109"


class Runs:
    def __reduce__(self) -> Any:
        return eval, ("1/0",)


def test_code_in_metadata_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3)})
    change_metadata(tmp_path, lambda metadata: setattr(metadata, "planner_data", Runs()))
    assert code_of(tmp_path) == "CKP105"


def test_code_in_an_object_is_left_alone(tmp_path: Path) -> None:
    index = read_index(save(tmp_path, {"a": torch.ones(3), "evil": Runs(), "fine": [1]}))
    assert index.extra == {"fine": [1]}
    assert torch.equal(whole(index, "a"), torch.ones(3))


def test_damaged_metadata(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3), "step": 7})
    file = tmp_path / ".metadata"
    data = file.read_bytes()
    for at in range(0, len(data), 3):
        file.write_bytes(data[:at])
        assert code_of(tmp_path) == "CKP103"
        file.write_bytes(bytes([*data[:at], data[at] ^ (1 << at % 8), *data[at + 1 :]]))
        try:
            resolve_all(tmp_path)
        except CheckpointError:
            continue
