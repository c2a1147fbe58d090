# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files of torch.save: every tensor is found where it lies, and damaged files are refused."""

import argparse
import enum
import io
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.restricted_pickle import Opaque
from flexckpt.io.torch_file import FileTensor, materialize, read_torch_blob, read_torch_file

_BASE = torch.arange(24.0).reshape(4, 6)


class Mode(enum.Enum):
    FAST = 1


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = "kept by torch.save"  # type: ignore[attr-defined]
    return tensor


_TENSORS = {
    "plain": _BASE,
    "view": _BASE[1:3, 2:5],
    "transposed": _BASE.t(),
    "strided": _BASE[::2, ::3],
    "expanded": torch.arange(3.0).expand(4, 3),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0, 3),
    "empty view": _BASE[4:],
    "parameter": torch.nn.Parameter(torch.ones(2, 3)),
    "buffer": torch.nn.Buffer(torch.ones(2)),
    "with an attribute": with_attribute(torch.arange(3)),
    "parameter with an attribute": with_attribute(torch.nn.Parameter(torch.ones(3))),
    **{
        str(dtype): torch.arange(5).to(dtype)
        for dtype in (
            torch.float64,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.int8,
            torch.uint8,
            torch.uint16,
            torch.bool,
            torch.complex64,
            torch.float8_e4m3fn,
            torch.float8_e5m2,
        )
    },
}


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(found: FileTensor, path: Path, want: torch.Tensor) -> bool:
    got = materialize(found, path)
    return (got.dtype, got.shape, bits(got)) == (want.dtype, want.shape, bits(want))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.pt"


def test_every_kind_of_tensor_is_found(path: Path) -> None:
    torch.save(_TENSORS, path)
    found = read_torch_file(path)
    assert found.keys() == _TENSORS.keys()
    for name, want in _TENSORS.items():
        assert isinstance(found[name], FileTensor), name
        assert found[name].shape == tuple(want.shape)
        if name != "buffer":  # torch.save writes its elements only
            assert found[name].strides == want.stride()
        assert same(found[name], path, want), name


def test_shared_storages_are_seen(path: Path) -> None:
    torch.save({"a": _BASE, "tied": _BASE, "view": _BASE[2:], "other": _BASE.clone()}, path)
    found = read_torch_file(path)
    assert found["a"] == found["tied"]
    assert found["view"].storage == found["a"].storage
    assert found["view"].position == found["a"].position + 2 * 6 * 4
    assert found["other"].storage != found["a"].storage


def test_structure_is_kept(path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "step": 7}, path)
    found = read_torch_file(path)
    assert list(found["model"]) == ["weight", "bias"]
    assert found["optim"]["param_groups"] == optimizer.state_dict()["param_groups"]
    want = optimizer.state[model.weight]["exp_avg"]
    assert same(found["optim"]["state"][0]["exp_avg"], path, want)
    assert materialize(found["optim"]["state"][1]["step"], path) == 1
    assert found["step"] == 7


def test_archive_inside_a_bigger_file(path: Path) -> None:
    blob = io.BytesIO()
    torch.save(_TENSORS["view"], blob)
    data = blob.getvalue()
    path.write_bytes(b"x" * 101 + data + b"y" * 13)
    assert same(read_torch_blob(path, 101, len(data)), path, _BASE[1:3, 2:5])


def test_without_checksums(path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"a": _BASE}, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert same(read_torch_file(path)["a"], path, _BASE)


def test_foreign_objects_are_refused_or_inert(path: Path) -> None:
    args = argparse.Namespace(lr=0.1, like=_BASE)
    torch.save({"args": args, "mode": Mode.FAST, "w": _BASE}, path)
    with pytest.raises(CheckpointError, match=r"argparse\.Namespace") as caught:
        read_torch_file(path)
    assert caught.value.code == "CKP105"
    found = read_torch_file(path, unknown="opaque")
    assert isinstance(found["args"], Opaque)
    assert isinstance(found["mode"], Opaque)
    assert same(found["w"], path, _BASE)


def test_numpy_scalars_are_numbers(path: Path) -> None:
    scalars = [np.float32(0.5), np.float64(-2.5), np.int64(-7), np.uint8(200), np.bool_(True)]
    torch.save(scalars, path)
    assert read_torch_file(path) == [0.5, -2.5, -7, 200, True]


def test_format_of_old_torch(path: Path) -> None:
    saved = {name: t for name, t in _TENSORS.items() if not name.startswith("torch.float8")}
    state = {"tensors": saved, "step": 7, "again": saved["plain"]}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    found = read_torch_file(path)
    assert found["step"] == 7
    assert found["again"] == found["tensors"]["plain"]
    for name, want in saved.items():
        assert same(found["tensors"][name], path, want), name


def test_damaged_file_of_old_torch(path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": [1, "x"]}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    want = read_torch_file(path)
    for at in range(len(data)):
        path.write_bytes(data[:at])
        assert code_of(path) in ("CKP103", "CKP109")
        path.write_bytes(bytes([*data[:at], data[at] ^ (1 << at % 8), *data[at + 1 :]]))
        try:
            found = read_torch_file(path)
        except FlexckptError:
            continue
        if at > len(data) - 12:  # the elements
            assert found == want


def test_code_in_a_file_of_old_torch(path: Path) -> None:
    torch.save({"a": Mode.FAST}, path, _use_new_zipfile_serialization=False)
    assert code_of(path) == "CKP105"
    assert isinstance(read_torch_file(path, unknown="opaque")["a"], Opaque)


def test_a_conjugate_is_refused(path: Path) -> None:
    torch.save(torch.randn(3, dtype=torch.complex64).conj(), path)
    with pytest.raises(CheckpointError) as caught:
        read_torch_file(path)
    assert caught.value.code == "CKP109"


def code_of(path: Path) -> str:
    with pytest.raises(FlexckptError) as caught:
        read_torch_file(path)
    assert str(path) in str(caught.value)
    return caught.value.code


def test_no_file(path: Path) -> None:
    assert code_of(path) == "CKP102"


def rewrite(path: Path, change: Any, **options: Any) -> None:
    """Copy the archive with Python's zip writer, its names and bytes passed through `change`."""
    with zipfile.ZipFile(path) as archive:
        entries = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in change(entries):
            archive.writestr(name, data)


def test_rewritten_archive_is_read(path: Path) -> None:
    torch.save({"a": _BASE}, path)
    rewrite(path, lambda entries: entries)
    assert same(read_torch_file(path)["a"], path, _BASE)


def test_compressed_entries_are_refused(path: Path) -> None:
    torch.save({"a": torch.zeros(100_000)}, path)
    rewrite(path, lambda entries: entries, compression=zipfile.ZIP_DEFLATED)
    assert code_of(path) == "CKP109"


def test_big_endian_is_refused(path: Path) -> None:
    torch.save({"a": _BASE}, path)
    rewrite(
        path,
        lambda entries: [(n, b"big" if n.endswith("byteorder") else data) for n, data in entries],
    )
    assert code_of(path) == "CKP109"


def test_missing_and_short_storages(path: Path) -> None:
    torch.save({"a": _BASE}, path)
    whole = path.read_bytes()
    rewrite(path, lambda entries: [e for e in entries if "/data/" not in e[0]])
    assert code_of(path) == "CKP103"
    path.write_bytes(whole)
    rewrite(path, lambda e: [(n, d[:-4] if "/data/" in n else d) for n, d in e])
    assert code_of(path) == "CKP103"


def test_tensor_outside_of_its_storage(path: Path) -> None:
    torch.save({"a": _BASE}, path)
    with zipfile.ZipFile(path) as archive:
        name = next(n for n in archive.namelist() if n.endswith("data.pkl"))
        pickled = archive.read(name)
    assert pickled.count(b"K\x04K\x06\x86") == 1
    whole = path.read_bytes()
    for shape in (b"K\x05K\x06\x86", b"K\x04K\x07\x86", b"K\xffK\xff\x86"):
        changed = pickled.replace(b"K\x04K\x06\x86", shape)
        path.write_bytes(whole)
        rewrite(path, lambda e: [(n, changed if n == name else d) for n, d in e])  # noqa: B023
        assert code_of(path) == "CKP103"


def test_not_a_torch_file(path: Path) -> None:
    path.write_bytes(b"")
    assert code_of(path) == "CKP103"
    path.write_bytes(b"no archive at all" * 10)
    assert code_of(path) == "CKP103"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")
    assert code_of(path) == "CKP109"


def test_truncated_anywhere(path: Path) -> None:
    torch.save({"a": torch.ones(3), "b": [1, "x"]}, path)
    data = path.read_bytes()
    for end in {*range(0, len(data), 7), *range(len(data) - 200, len(data))}:
        path.write_bytes(data[:end])
        assert code_of(path) in ("CKP103", "CKP109")


def test_flipped_anywhere(path: Path) -> None:
    """A changed byte gives an error of ours, or changes nothing but elements."""
    torch.save({"a": torch.ones(3), "b": [1, "x"]}, path)
    data = path.read_bytes()
    want = read_torch_file(path)
    for at in range(len(data)):
        flip = 0x80 if at % 2 else 0x01
        path.write_bytes(bytes([*data[:at], data[at] ^ flip, *data[at + 1 :]]))
        try:
            found = read_torch_file(path)
        except FlexckptError:
            continue
        assert found == want


def test_other_things_than_files(path: Path) -> None:
    path.mkdir()
    assert code_of(path) == "CKP103"
    path.rmdir()
    os.mkfifo(path)  # opening it to read would wait for a writer
    assert code_of(path) == "CKP103"
