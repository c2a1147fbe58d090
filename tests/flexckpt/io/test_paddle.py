# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The reader of Paddle's checkpoints, on real files (data/make_paddle.py) and hostile ones."""

import json
import os
import pickle
import sys
import types
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, SourceIndex
from flexckpt.io.paddle import READER, read_index, recognizes
from flexckpt.states import split_name

_ARCHIVE = Path(__file__).with_name("data") / "paddle_checkpoints.zip"
with zipfile.ZipFile(_ARCHIVE) as _archive:
    _CONTENTS: dict[str, Any] = json.loads(_archive.read("contents.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with zipfile.ZipFile(_ARCHIVE) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def _assembled(index: SourceIndex, entry: Entry) -> torch.Tensor:
    """A whole tensor from the bytes of its shards, element by element; each must be there."""
    out = torch.zeros(entry.shape, dtype=entry.dtype)
    seen = torch.zeros(entry.shape, dtype=torch.int32)
    size = entry.dtype.itemsize
    assert index.resolve is not None
    for shard in map(index.resolve, entry.shards):
        data = index.files[shard.file].read_bytes()
        assert shard.position is not None
        for box, strides, base in shard.regions():
            for at in np.ndindex(*box.shape):
                element = base + sum(i * s for i, s in zip(at, strides, strict=True))
                start = shard.position + element * size
                value = torch.frombuffer(bytearray(data[start : start + size]), dtype=entry.dtype)
                place = tuple(i + a for i, a in zip(at, box.start, strict=True))
                out[place] = value[0]
                seen[place] += 1
    assert bool((seen > 0).all())
    return out


def _expected(content: dict[str, Any]) -> torch.Tensor:
    count = prod(content["shape"])
    values = content["first"] + content["step"] * torch.arange(count, dtype=torch.float64)
    return values.to(getattr(torch, content["dtype"])).reshape(content["shape"])


@pytest.mark.parametrize("name", [name for name in _CONTENTS if _CONTENTS[name]])
def test_contents(folder: Path, name: str) -> None:
    assert recognizes(folder / name)
    index = READER.read_index(folder / name)
    assert index.layout == READER.layout == "paddle"
    contents = _CONTENTS[name]
    assert index.entries.keys() == {split_name(key) for key in contents}
    for key, content in contents.items():
        entry = index.entries[split_name(key)]
        expected = _expected(content)
        assert (entry.shape, entry.dtype) == (tuple(expected.shape), expected.dtype)
        found = _assembled(index, entry)
        assert (
            torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
            if (found.ndim and found.numel())
            else torch.equal(found, expected)
        )


def test_all_dtypes_are_there() -> None:
    assert len({content["dtype"] for content in _CONTENTS["plain"].values()}) == 14


def test_optimizer_names_are_states(folder: Path) -> None:
    states = {state for key, state in read_index(folder / "flattened").entries if key == "net.w"}
    scalars = {"beta1_pow_acc", "beta2_pow_acc"}
    assert states == {"weight", "master", "exp_avg", "exp_avg_sq"} | scalars


def test_replicas_are_listed(folder: Path) -> None:
    once = read_index(folder / "boxes").entries["same", "weight"].shards
    thrice = read_index(folder / "replicas").entries["same", "weight"].shards
    assert (len(once), len({s.file for s in thrice})) == (1, 3)


def test_a_transposed_tensor_is_read_in_place(folder: Path) -> None:
    """NumPy pickles it in Fortran order; the bytes of the file stay as they are."""
    index = read_index(folder / "plain")
    assert index.resolve is not None
    assert index.resolve(index.entries["turned", "weight"].shards[0]).strides == (1, 4)


def test_the_index_opens_no_data_file(folder: Path) -> None:
    path = folder / "boxes"
    index = read_index(path)
    for file in index.files:
        file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="CKP103"):
        _assembled(index, index.entries["row", "weight"])


def test_metadata_can_be_named(folder: Path) -> None:
    path = folder / "twice"
    assert recognizes(path / "3.metadata")
    for name, first in (("twice", 10), ("twice/12.metadata", 10), ("twice/3.metadata", 0)):
        index = read_index(folder / name)
        assert _assembled(index, index.entries["w", "weight"]).tolist() == [
            first,
            first + 1,
            first + 2,
        ]


def test_the_folder_of_a_trainer(folder: Path) -> None:
    """Weights and optimizer states side by side are one checkpoint."""
    step = folder / "checkpoint-7"
    step.mkdir()
    (folder / "boxes").rename(step / "model_state")
    (folder / "flattened").rename(step / "optimizer_state")
    (folder / "plain").rename(step / "else")
    assert recognizes(step)
    index = read_index(step)
    contents = _CONTENTS["boxes"] | _CONTENTS["flattened"]
    assert index.entries.keys() == {split_name(key) for key in contents}
    for key in ("column", "net.w.moment2_0"):
        assert torch.equal(
            _assembled(index, index.entries[split_name(key)]), _expected(contents[key])
        )


def test_a_tensor_in_two_parts(folder: Path) -> None:
    (folder / "both").mkdir()
    (folder / "boxes").rename(folder / "both" / "model_state")
    (folder / "replicas").rename(folder / "both" / "master_weight")
    with pytest.raises(CheckpointError, match=r"CKP202.*is there twice"):
        read_index(folder / "both")


def test_other_folders_are_not_recognized(tmp_path: Path) -> None:
    (tmp_path / ".metadata").touch()
    (tmp_path / "x.metadata").touch()
    (tmp_path / "model.safetensors").touch()
    assert not recognizes(tmp_path)
    assert not recognizes(tmp_path / "nothing")
    assert not recognizes(tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(CheckpointError, match="CKP101"):
            read_index(path)


def test_stale_metadata_are_noticed(folder: Path) -> None:
    index = read_index(folder / "stale")
    with pytest.raises(CheckpointError, match=r"CKP103.*should be float32 of shape \(2, 2\)"):
        _assembled(index, index.entries["w", "weight"])


def test_the_index_can_be_sent(folder: Path) -> None:
    index = pickle.loads(pickle.dumps(read_index(folder / "flattened")))
    entry = index.entries["net.w", "exp_avg"]
    assert torch.equal(_assembled(index, entry), torch.arange(100.0, 115.0).reshape(3, 5))


def test_a_missing_file(folder: Path) -> None:
    (folder / "boxes" / "1_0.distcp").unlink()
    with pytest.raises(CheckpointError, match=r"CKP102.*1_0\.distcp"):
        read_index(folder / "boxes")


class Metadata:
    """Stands for Paddle's class of the name when a test pickles metadata of its own."""

    def __init__(self, **fields: Any) -> None:
        vars(self).update(fields)


class LocalTensorMetadata(Metadata):
    pass


class LocalTensorIndex(Metadata):
    pass


for _kind in (Metadata, LocalTensorMetadata, LocalTensorIndex):
    _kind.__module__ = "paddle.distributed.checkpoint.metadata"


@pytest.fixture
def paddle_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pickle write the names of Paddle's classes."""
    parts = Metadata.__module__.split(".")
    for count in range(1, len(parts) + 1):
        module = types.ModuleType(".".join(parts[:count]))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    for kind in (Metadata, LocalTensorMetadata, LocalTensorIndex):
        setattr(module, kind.__name__, kind)


def _write(
    path: Path,
    *,
    fields: dict[str, Any] | None = None,
    array: Any = None,
    protocol: int = 4,
    file: str = "0_0.distcp",
) -> Path:
    """A checkpoint of one tensor ``w`` of shape (2, 3), as versions before 3.2 wrote it."""
    path.mkdir(exist_ok=True)
    shard = {"global_offset": (0, 0), "local_shape": (2, 3), "dtype": "float32"} | (fields or {})
    offset = shard["global_offset"]
    meta = Metadata(
        state_dict_metadata={"w": [LocalTensorMetadata(**shard)]},
        storage_metadata={LocalTensorIndex(tensor_key="w", global_offset=offset): file},
        flat_mapping={"w": ("w",)},
    )
    (path / "0.metadata").write_bytes(pickle.dumps(meta, protocol=4))
    value = np.arange(6, dtype=np.float32).reshape(2, 3) if array is None else array
    (path / "0_0.distcp").write_bytes(pickle.dumps({"w": value}, protocol=protocol))
    return path


@pytest.mark.usefixtures("paddle_classes")
class TestWrittenHere:
    def test_old_metadata(self, tmp_path: Path) -> None:
        """Without a global shape, and with shards that are named without a shape."""
        index = read_index(_write(tmp_path / "c"))
        entry = index.entries["w", "weight"]
        assert torch.equal(_assembled(index, entry), torch.arange(6.0).reshape(2, 3))

    def test_protocol_3(self, tmp_path: Path) -> None:
        index = read_index(_write(tmp_path / "c", protocol=3))
        assert _assembled(index, index.entries["w", "weight"])[1, 2] == 5

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("CKP109", {"protocol": 2}),
            ("CKP109", {"array": np.arange(6, dtype=">f4").reshape(2, 3)}),
            ("CKP103", {"array": np.arange(6, dtype=np.float64).reshape(2, 3)}),
            ("CKP103", {"array": np.arange(6, dtype=np.float32)}),
            ("CKP103", {"array": [1, 2, 3]}),
            ("CKP103", {"array": "text"}),
            ("CKP103", {"array": np.array([[None] * 3] * 2, dtype=object)}),
            ("CKP105", {"array": Path("x")}),
            ("CKP103", {"fields": {"local_shape": (2, -3)}}),
            ("CKP103", {"fields": {"local_shape": (2, 2**70)}}),
            ("CKP103", {"fields": {"local_shape": (2,)}}),
            ("CKP103", {"fields": {"local_shape": "ab"}}),
            ("CKP103", {"fields": {"local_shape": (2, True)}}),
            ("CKP103", {"fields": {"global_shape": (2, 2)}}),
            ("CKP103", {"fields": {"global_shape": (2, 3, 1)}}),
            ("CKP103", {"fields": {"global_offset": (1, 0), "global_shape": (2, 3)}}),
            ("CKP103", {"fields": {"flattened_range": (0, 7)}}),
            ("CKP103", {"fields": {"flattened_range": (4, 2)}}),
            ("CKP103", {"fields": {"flattened_range": (0, 2, 4)}}),
            ("CKP109", {"fields": {"dtype": "float4"}}),
            ("CKP109", {"fields": {"dtype": ["float32"]}}),
            ("CKP106", {"file": "../0_0.distcp"}),
            ("CKP106", {"file": "/etc/passwd"}),
            ("CKP106", {"file": "a\\0_0.distcp"}),
            ("CKP106", {"file": "0.metadata"}),
            ("CKP102", {"file": "7_0.distcp"}),
            ("CKP103", {"file": 7}),
        ],
    )
    def test_refused(self, tmp_path: Path, code: str, changes: dict[str, Any]) -> None:
        path = _write(tmp_path / "c", **changes)
        with pytest.raises(CheckpointError) as error:
            _resolved(path)
        assert error.value.code == code

    def test_a_shape_beyond_memory(self, tmp_path: Path) -> None:
        fields = {"local_shape": (2**40, 2**20), "global_shape": (2**40, 2**20)}
        index = read_index(_write(tmp_path / "c", fields=fields))
        assert index.resolve is not None
        with pytest.raises(CheckpointError, match="CKP103"):
            index.resolve(index.entries["w", "weight"].shards[0])


class _Attack:
    def __reduce__(self) -> Any:
        return os.system, ("touch hacked",)


@pytest.mark.parametrize("file", ["0.metadata", "0_0.distcp"])
@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_code_is_not_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, protocol: int
) -> None:
    monkeypatch.chdir(folder)
    (folder / "boxes" / file).write_bytes(pickle.dumps({"w": _Attack()}, protocol=protocol))
    with pytest.raises(CheckpointError, match="CKP105"):
        _resolved(folder / "boxes")
    assert not (folder / "hacked").exists()


@pytest.mark.parametrize("file", ["0.metadata", "0_0.distcp", "1_0.distcp"])
def test_truncated(folder: Path, file: str) -> None:
    path = folder / "flattened" / file
    data = path.read_bytes()
    for stop in range(0, len(data), 7):
        path.write_bytes(data[:stop])
        with pytest.raises(CheckpointError):
            _resolved(folder / "flattened")


@pytest.mark.parametrize("file", ["0.metadata", "0_0.distcp"])
def test_one_byte_changed(folder: Path, file: str) -> None:
    """Whatever a byte is changed to, the files are read or refused; nothing else is raised."""
    path = folder / "flattened" / file
    data = bytearray(path.read_bytes())
    chance = np.random.default_rng(0)
    refused = 0
    for at in range(0, len(data), 3 if len(data) > 1000 else 1):
        changed = bytearray(data)
        changed[at] ^= int(chance.integers(1, 256))
        path.write_bytes(changed)
        try:
            _resolved(folder / "flattened")
        except CheckpointError:
            refused += 1
    assert refused > 100


def _resolved(path: Path) -> None:
    index = read_index(path)
    assert index.resolve is not None
    for entry in index.entries.values():
        for shard in map(index.resolve, entry.shards):
            shard.regions()
