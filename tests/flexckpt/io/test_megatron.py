# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A checkpoint that megatron-core wrote is read under the names of the modules of one device."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from flexckpt.boxes import box_at, full_box
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.io.dcp_writer import write_metadata, write_rank_file
from flexckpt.io.megatron import READER, read_index
from flexckpt.io.megatron_names import present_entries
from tests.flexckpt.io.data.make_megatron import FILE, STATES, values
from tests.flexckpt.io.whole import whole


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megatron")
    with zipfile.ZipFile(FILE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def contents(saved: Path) -> dict[str, Any]:
    return json.loads((saved / "contents.json").read_text())  # type: ignore[no-any-return]


def test_every_tensor_of_the_model(saved: Path, contents: dict[str, Any]) -> None:
    path = saved / "checkpoint"
    assert READER.recognizes(path)
    index = read_index(path)
    assert set(index.entries) == {(name, state) for name in contents for state in STATES}
    for name, entry in contents.items():
        for state in STATES:
            dtype = torch.bfloat16 if state == "weight" else torch.float32
            found = whole(index, name, state)
            assert found.dtype == dtype
            assert torch.equal(found, values(entry, state).to(dtype)), (name, state)


def test_settings(saved: Path) -> None:
    assert read_index(saved / "checkpoint").extra == {
        "iteration": 7,
        "args": {"num_layers": 3, "lr": 0.5},
        "optimizer": {"param_groups": [{"lr": 0.5, "betas": [0.9, 0.95], "step": 7}]},
        "content_metadata": {"singleton_local_shards": False},
        "rerun_state/shard_0_2": {"mode": "disabled"},
        "rerun_state/shard_1_2": {"mode": "disabled"},
    }


def test_folder_of_a_run(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "iter_0000007").symlink_to(saved / "checkpoint")
    latest = tmp_path / "latest_checkpointed_iteration.txt"
    latest.write_text("7\n")
    assert READER.recognizes(tmp_path)
    assert len(read_index(tmp_path).entries) == len(read_index(saved / "checkpoint").entries)
    for text in ("8", "../x", "", "\xff", "9" * 100):
        latest.write_text(text, encoding="latin-1")
        assert not READER.recognizes(tmp_path)


def test_shards_are_not_counted_by_macros(saved: Path) -> None:
    index = read_index(saved / "checkpoint")
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    assert len(index.entries[name, "weight"].shards) == 4
    assert index.specs()[name].shards is None


def write(path: Path, tensors: dict[str, Any]) -> SourceIndex:
    """Write parts (offset, tensor) of global shapes as a Megatron checkpoint."""
    shards = [
        (name, shape, offset, part)
        for name, (shape, parts) in tensors.items()
        for offset, part in parts
    ]
    write_metadata(path, write_rank_file(path, 0, shards))
    (path / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist"}))
    return read_index(path)


def test_states_that_are_ranges_of_flat_boxes(tmp_path: Path) -> None:
    """Layers of [4, 6], cut into boxes of [4, 3], these into ranges of uneven length."""
    weight = torch.arange(48.0).reshape(2, 4, 6)
    state = weight + 1000
    name = "decoder.layers.mlp.linear_proj.weight"
    parts = []
    for layer in range(2):
        for column in range(2):
            flat = state[layer, :, 3 * column : 3 * column + 3].reshape(1, 1, 1, 12)
            for start, stop in ((0, 5), (5, 12)):
                parts.append(((layer, 0, column, start), flat[..., start:stop]))
    stored = {
        name: ((2, 4, 6), [((0, 0, 0), weight[:1]), ((1, 0, 0), weight[1:])]),
        f"optimizer.state.exp_avg.{name}": ((2, 1, 2, 12), parts),
    }
    index = write(tmp_path, stored)
    for layer in range(2):
        key = f"decoder.layers.{layer}.mlp.linear_proj.weight"
        assert torch.equal(whole(index, key), weight[layer])
        assert torch.equal(fill(index, key, "exp_avg"), state[layer])


def fill(index: SourceIndex, key: str, state: str) -> torch.Tensor:
    """A tensor put together from flat ranges, element by element."""
    entry = index.entries[key, state]
    full = torch.full(entry.shape, -1.0)
    for shard in entry.shards:
        assert index.resolve is not None
        shard = index.resolve(shard)
        assert shard.flat_range is not None
        assert shard.position is not None
        start, stop = shard.flat_range
        with index.files[shard.file].open("rb") as file:
            file.seek(shard.position)
            data = torch.frombuffer(bytearray(file.read(4 * (stop - start))), dtype=torch.float32)
        assert full_box(entry.shape).contains(box_at(shard.offset, shard.shape))
        box = full[tuple(slice(a, a + n) for a, n in zip(shard.offset, shard.shape, strict=True))]
        flat = box.reshape(-1)
        flat[start:stop] = data
        box.copy_(flat.reshape(box.shape))
    return full


def test_several_experts_in_one_part(tmp_path: Path) -> None:
    weight = torch.arange(2 * 4 * 3 * 2.0).reshape(2, 4, 3, 2)
    state = weight + 1000
    name = "decoder.layers.mlp.experts.experts.linear_fc1.weight"
    parts = [((k, e, 0, 0), weight[k : k + 1, e : e + 2]) for k in range(2) for e in (0, 2)]
    flat = [
        ((k, e, 0, 0, start), state[k, 2 * e : 2 * e + 2].reshape(1, 1, 1, 1, 12)[..., start:stop])
        for k in range(2)
        for e in range(2)
        for start, stop in ((0, 8), (8, 12))
    ]
    stored = {
        name: ((2, 4, 3, 2), parts),
        f"optimizer.state.exp_avg.{name}": ((2, 2, 1, 1, 12), flat),
    }
    index = write(tmp_path, stored)
    assert len(index.entries) == 16
    for layer in range(2):
        for expert in range(4):
            key = f"decoder.layers.{layer}.mlp.experts.linear_fc1.weight{expert}"
            assert torch.equal(whole(index, key), weight[layer, expert])
            assert torch.equal(fill(index, key, "exp_avg"), state[layer, expert])


def test_halves_of_a_gated_layer(tmp_path: Path) -> None:
    gate, up = torch.randn(2, 3), torch.randn(2, 3)
    stored: dict[str, Any] = {
        "decoder.layers.0.mlp.linear_fc1.weight_w": ((2, 3), [((0, 0), gate)]),
        "decoder.layers.0.mlp.linear_fc1.weight_v": ((2, 3), [((0, 0), up)]),
        "decoder.layers.0.mlp.experts.experts.5.linear_fc1.weight_w": ((2, 3), [((0, 0), gate)]),
        "decoder.layers.0.mlp.experts.experts.5.linear_fc1.weight_v": ((2, 3), [((0, 0), up)]),
        "alone_w": ((2, 3), [((0, 0), up)]),
    }
    index = write(tmp_path, stored)
    assert set(index.entries) == {
        ("decoder.layers.0.mlp.linear_fc1.weight", "weight"),
        ("decoder.layers.0.mlp.experts.linear_fc1.weight5", "weight"),
        ("alone_w", "weight"),
    }
    for key, _ in index.entries:
        want = up if key == "alone_w" else torch.cat([gate, up])
        assert torch.equal(whole(index, key), want)


def test_two_tensors_of_one_name() -> None:
    shard = Stored((0,), (3,), None, 0, 0)
    stored = {
        name: Entry(name, "weight", (3,), torch.float32, [shard])
        for name in ("optimizer.state.exp_avg.w", "chained_0.optimizer.state.exp_avg.w")
    }
    with pytest.raises(CheckpointError) as caught:
        present_entries(stored, lambda part: part)
    assert caught.value.code == "CKP202"


def test_other_backends_are_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "zarr"}')
    assert READER.recognizes(tmp_path)
    with pytest.raises(CheckpointError, match="zarr") as caught:
        read_index(tmp_path)
    assert caught.value.code == "CKP109"


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"other": 1}', "[" * 60000])
def test_not_megatron(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "metadata.json").write_text(text)
    assert not READER.recognizes(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        read_index(tmp_path)
    assert caught.value.code == "CKP101"


def test_metadata_are_missing(tmp_path: Path) -> None:
    (tmp_path / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    with pytest.raises(CheckpointError) as caught:
        read_index(tmp_path)
    assert caught.value.code == "CKP102"
