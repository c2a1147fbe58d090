# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Truncated, malformed and hostile safetensors files and indexes are refused in one sentence."""

import contextlib
import json
import os
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from flexckpt.errors import CheckpointError
from flexckpt.io.huggingface import read_index
from flexckpt.io.safetensors_file import read_header
from tests.flexckpt.hf.files import f32, raw_file, write_weight_map

HOSTILE = {
    "not JSON": (b"not json", b"", "CKP103"),
    "not an object": ([], b"", "CKP103"),
    "deep nesting": (b'{"a":' + b"[" * 100_000, b"", "CKP103"),
    "a number of many digits": (b'{"a":' + b"9" * 100_000 + b"}", b"", "CKP103"),
    "another encoding": (json.dumps({}).encode("utf-16"), b"", "CKP103"),
    "a name twice": (
        b'{"a":%s,"a":%s}' % ((json.dumps(f32([1], 0, 4)).encode(),) * 2),
        bytes(4),
        "CKP103",
    ),
    "a field twice": (
        b'{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}',
        bytes(4),
        "CKP103",
    ),
    "overlap": ({"a": f32([2], 0, 8), "b": f32([2], 4, 12)}, bytes(12), "CKP103"),
    "the same bytes": ({"a": f32([2], 0, 8), "b": f32([2], 0, 8)}, bytes(8), "CKP103"),
    "a hole": ({"a": f32([1], 0, 4), "b": f32([1], 8, 12)}, bytes(12), "CKP103"),
    "past the end": ({"a": f32([2], 0, 8)}, bytes(4), "CKP103"),
    "data behind the last tensor": ({"a": f32([1], 0, 4)}, bytes(5), "CKP103"),
    "an empty tensor far away": ({"a": f32([0], 2**60, 2**60)}, b"", "CKP103"),
    "wrong size": ({"a": f32([3], 0, 8)}, bytes(8), "CKP103"),
    "sizes that overflow": ({"a": f32([2**62, 4], 0, 0)}, b"", "CKP103"),
    "a negative size": ({"a": f32([-1], 0, 4)}, bytes(4), "CKP103"),
    "backwards": ({"a": f32([1], 4, 0)}, bytes(4), "CKP103"),
    "a size that is true": ({"a": f32([True], 0, 4)}, bytes(4), "CKP103"),
    "a size of 1.0": ({"a": f32([1.0], 0, 4)}, bytes(4), "CKP103"),
    "too many axes": ({"a": f32([1] * 1000, 0, 4)}, bytes(4), "CKP103"),
    "three offsets": ({"a": {**f32([1], 0, 4), "data_offsets": [0, 4, 4]}}, bytes(4), "CKP103"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4), "CKP103"),
    "a further field": ({"a": {**f32([1], 0, 4), "x": 1}}, bytes(4), "CKP103"),
    "a tensor that is none": ({"a": None}, b"", "CKP103"),
    "an unknown dtype": ({"a": {**f32([1], 0, 4), "dtype": "F31"}}, bytes(4), "CKP109"),
    "a dtype that is a list": ({"a": {**f32([1], 0, 4), "dtype": []}}, bytes(4), "CKP109"),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, b"", "CKP103"),
    "metadata that is a list": ({"__metadata__": []}, b"", "CKP103"),
    "an endless value": ({"a": {**f32([1], 0, 4), "dtype": "x" * 10**6}}, bytes(4), "CKP109"),
}


def refusal(path) -> CheckpointError:
    with pytest.raises(CheckpointError) as caught:
        read_index(path)
    assert len(str(caught.value)) < 1000
    return caught.value


@pytest.mark.parametrize("case", HOSTILE, ids=lambda name: name.replace(" ", "_"))
def test_hostile_header(tmp_path, case):
    header, data, code = HOSTILE[case]
    path = raw_file(tmp_path / "x.safetensors", header, data)
    assert refusal(path).code == code
    # The library refuses all of these, too, except what it leaves to its users.
    if case not in ("a further field", "a name twice", "a field twice", "too many axes"):
        with pytest.raises((SafetensorError, OSError)), safe_open(path, "pt"):
            pass


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 100_000_001, 10**6, 3])
def test_header_length_that_is_a_lie(tmp_path, length):
    path = raw_file(tmp_path / "x.safetensors", {"a": f32([1], 0, 4)}, bytes(4), length)
    assert refusal(path).code == "CKP103"


def test_huge_header_of_a_sparse_file_is_not_read(tmp_path):
    path = raw_file(tmp_path / "x.safetensors", b"", b"", 2**40)
    os.truncate(path, 2**40 + 8)  # sparse
    assert "claims" in str(refusal(path))


def test_every_truncation_is_noticed(tmp_path):
    whole = save({"a": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.int8)})
    path = tmp_path / "x.safetensors"
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        assert refusal(path).code == "CKP103"
    path.write_bytes(whole)
    assert len(read_index(path).entries) == 2


def test_pipes_folders_and_broken_links_do_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    assert refusal(tmp_path / "pipe.safetensors").code == "CKP103"
    (tmp_path / "pipe.safetensors").unlink()
    folder = tmp_path / "folder"
    (folder / "model.safetensors").mkdir(parents=True)
    assert refusal(folder).code == "CKP103"
    for target in ("nowhere", "model.safetensors"):  # dangling, and a link to itself
        links = tmp_path / target
        links.mkdir()
        (links / "model.safetensors").symlink_to(target)
        assert refusal(links).code in ("CKP102", "CKP103")


OUTSIDE = [
    "../x.safetensors",
    "/etc/passwd",
    "a/../../x",
    "..\\x",
    "C:\\x",
    "C:x",
    "\\x",
    "",
    ".",
    "a\0b",
]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_index_that_leaves_its_folder(tmp_path, name):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    raw_file(tmp_path / "x.safetensors", {"a": f32([1], 0, 4)}, bytes(4))
    write_weight_map(folder, {"a": name})
    assert refusal(folder).code == "CKP106"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"weight_map": []}',
        b'{"weight_map": {"a": 1}}',
        b'{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}',
        b'{"weight_map":' + b"{" * 100_000,
        b"\xff\xfe",
    ],
)
def test_index_that_is_none(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    assert refusal(tmp_path).code == "CKP103"


def test_index_of_any_length_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors.index.json"
    path.write_bytes(b"{")
    os.truncate(path, 2**40)
    assert refusal(tmp_path).code == "CKP103"


QUIET = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=8,
)
ALMOST = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "I8", "BF16", "F8_E4M3", "C64", "f32", "", None]),
        "shape": st.lists(st.integers(-1, 4), max_size=3) | JSON,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3) | JSON,
    }
)


@QUIET
@given(
    header=st.dictionaries(
        st.text(max_size=5) | st.just("__metadata__"), ALMOST | JSON, max_size=3
    ),
    data=st.integers(0, 40),
)
def test_any_header_is_read_as_the_library_reads_it_or_refused(tmp_path, header, data):
    path = raw_file(tmp_path / "x.safetensors", header, bytes(data))
    try:
        ours = read_header(path)
    except CheckpointError:
        return
    with safe_open(path, "pt") as library:
        assert set(library.keys()) == ours.tensors.keys()
        for name, entry in ours.tensors.items():
            assert tuple(library.get_slice(name).get_shape()) == entry.shape


@QUIET
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.integers(0, 10**6))
def test_any_damaged_byte_is_refused_or_harmless(tmp_path, at, byte, cut):
    whole = bytearray(save({"a": torch.arange(3.0), "b": torch.zeros(2, dtype=torch.int8)}))
    whole[at % len(whole)] = byte
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole[: cut % (len(whole) + 50)])
    try:
        header = read_header(path)
    except CheckpointError:
        return
    size = path.stat().st_size
    assert all(8 <= e.start <= e.stop <= size for e in header.tensors.values())


@QUIET
@given(data=st.binary(max_size=200))
def test_any_bytes_are_refused_or_read(tmp_path, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", max(0, len(data) - 8)) + data)
    with contextlib.suppress(CheckpointError):
        read_header(path)


@QUIET
@given(
    weight_map=st.dictionaries(st.text(max_size=5), st.text(max_size=9) | JSON, max_size=3) | JSON,
    metadata=JSON,
)
def test_any_index_is_refused_or_read(tmp_path, weight_map, metadata):
    raw_file(tmp_path / "x.safetensors", {"a": f32([1], 0, 4)}, bytes(4))
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map, "metadata": metadata}))
    with contextlib.suppress(CheckpointError):
        assert read_index(tmp_path).entries.keys() <= {("a", "weight")}


@pytest.mark.parametrize("name", ["\ud800", "x" * 300, "x/" * 3000 + "x", "x.safetensors/x"])
def test_index_with_names_that_no_file_has(tmp_path, name):
    raw_file(tmp_path / "x.safetensors", {"a": f32([1], 0, 4)}, bytes(4))
    write_weight_map(tmp_path, {"a": name})
    assert refusal(tmp_path).code in ("CKP102", "CKP103", "CKP106")
