# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pickles come back as the data that went in, and hostile ones are refused."""

import argparse
import collections
import contextlib
import io
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.restricted_pickle import FileBytes, Opaque, Plain, load_plain

_ATOMS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
_KEYS = st.text(max_size=8) | st.integers(-(2**40), 2**40) | st.tuples(st.text(max_size=3))
_VALUES = st.recursive(
    _ATOMS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(_KEYS, inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.sets(_KEYS, max_size=4)
    ),
    max_leaves=30,
)


class Settings:
    """A class that no reader knows."""


class Runs:
    """Its pickle calls a function of the system."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("/nonexistent/folder",)


def load(data: bytes, **options: Any) -> Any:
    return load_plain(io.BytesIO(data), **options)


def code_of(data: bytes, **options: Any) -> str:
    started = time.monotonic()
    with pytest.raises(FlexckptError) as caught:
        load(data, **options)
    assert time.monotonic() - started < 5
    return caught.value.code


@given(_VALUES, st.sampled_from([2, 3, 4, 5]))
@settings(max_examples=200, deadline=None)
def test_plain_data_comes_back(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_known_classes_become_plain_data(protocol: int) -> None:
    ordered = collections.OrderedDict(b=1, a=[2])
    ordered.note = "an attribute"  # type: ignore[attr-defined]
    value = {
        "ordered": ordered,
        "default": collections.defaultdict(list, {"k": [1]}),
        "counter": collections.Counter("aab"),
        "size": torch.Size([2, 3]),
        "dtypes": [torch.bfloat16, torch.float8_e4m3fn, torch.bool],
        "bytearray": bytearray(b"\x00\xff"),
        "complex": 1 + 2j,
        "slice": slice(1, None, 2),
        "frozen": frozenset([1, 2]),
        "device": torch.device("cuda", 1),
    }
    assert load(pickle.dumps(value, protocol)) == {
        "ordered": {"b": 1, "a": [2]},
        "default": {"k": [1]},
        "counter": {"a": 2, "b": 1},
        "size": (2, 3),
        "dtypes": [torch.bfloat16, torch.float8_e4m3fn, torch.bool],
        "bytearray": b"\x00\xff",
        "complex": 1 + 2j,
        "slice": slice(1, None, 2),
        "frozen": frozenset([1, 2]),
        "device": "cuda:1",
    }


def test_shared_objects_stay_shared() -> None:
    part = [1]
    first, second = load(pickle.dumps([part, part]))
    assert first is second


def test_allowed_class_keeps_its_fields() -> None:
    made = Settings()
    made.rank = 3  # type: ignore[attr-defined]
    plain = load(pickle.dumps(made), allowed={(__name__, "Settings"): Plain})
    assert isinstance(plain, Plain)
    assert (plain.args, plain.fields) == ((), {"rank": 3})


@pytest.mark.parametrize("protocol", [2, 4])
def test_unknown_class_is_named_or_inert(protocol: int) -> None:
    data = pickle.dumps([argparse.Namespace(a=[1, 2]), 7], protocol)
    with pytest.raises(CheckpointError, match=r"argparse\.Namespace") as caught:
        load(data)
    assert caught.value.code == "CKP105"
    opaque, seven = load(data, unknown="opaque")
    assert isinstance(opaque, Opaque)
    assert (opaque.name, seven) == ("argparse.Namespace", 7)


def test_code_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    monkeypatch.setattr(os, "mkdir", lambda *args: called.append(args))
    monkeypatch.setattr(Runs, "__reduce__", lambda self: (eval, ("1/0",)))
    evaluates = pickle.dumps(Runs())
    makes = b"\x80\x02cposix\nmkdir\nX\x04\x00\x00\x00/abc\x85R."
    for data in (evaluates, makes):
        assert code_of(data) == "CKP105"
        assert isinstance(load(data, unknown="opaque"), Opaque)
    assert called == []


def test_large_bytes_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"head" + pickle.dumps({"a": b"x" * 5000, "b": b"yy"}, 4))
    with path.open("rb") as file:
        file.seek(4)
        value = load_plain(file, large_bytes=1000)
    assert isinstance(value["a"], FileBytes)
    position, length = value["a"]
    assert path.read_bytes()[position : position + length] == b"x" * 5000
    assert value["b"] == b"yy"


def test_persistent_ids_need_a_meaning() -> None:
    data = b"\x80\x02K\x07Q."
    assert load(data, persistent_load=lambda key: ("seen", key)) == ("seen", 7)
    assert code_of(data) == "CKP105"


def _nested(depth: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value, value)
    return value


def _cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


_COPIES = b"\x80\x02(" + b"K\x01" * 50_000 + b"lq\x00]" + b"cbuiltins\nlist\nh\x00\x85R" * 50_000
_HOSTILE = {
    "empty": (b"", "CKP103"),
    "no stop": (b"\x80\x02K\x01", "CKP103"),
    "pop from nothing": (b"\x80\x020.", "CKP103"),
    "no mark": (b"\x80\x02t.", "CKP103"),
    "memo of nothing": (b"\x80\x02h\x05.", "CKP103"),
    "huge memo index": (b"\x80\x02K\x01r\xff\xff\xff\x7f.", None),
    "huge text": (b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7f.", "CKP103"),
    "huge bytes": (b"\x80\x04\x8e\x00\x00\x00\x00\x00\x00\x01\x00.", "CKP103"),
    "huge bytearray": (b"\x80\x05\x96\x00\x00\x00\x00\x00\x00\x01\x00.", "CKP103"),
    "huge integer": (b"\x80\x02\x8b\x00\x00\x01\x00" + b"\x01" * 65536 + b".", "CKP103"),
    "unknown protocol": (b"\x80\x09K\x01.", "CKP109"),
    "text opcode": (b"I5\n.", "CKP105"),
    "extension": (b"\x80\x02\x82\x01.", "CKP105"),
    "old instance": (b"(iposix\nsystem\n.", "CKP105"),
    "calls data": (b"\x80\x02K\x01)R.", "CKP105"),
    "state of a dict class": (b"\x80\x02ccollections\nOrderedDict\n}b.", "CKP105"),
    "state of a dtype": (b"\x80\x02ctorch\nfloat32\n}b.", "CKP105"),
    "list as a key": (b"\x80\x02}]K\x01s.", "CKP103"),
    "negative size": (b"\x80\x02ctorch\nSize\nJ\xff\xff\xff\xff\x85\x85R.", "CKP103"),
    "contains itself": (pickle.dumps(_cyclic()), "CKP103"),
    "too deep": (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "CKP103"),
    "exponential": (pickle.dumps(_nested(60)), "CKP103"),
    "exponential key": (b"\x80\x04}" + pickle.dumps(_nested(60))[2:-1] + b"K\x01s.", "CKP103"),
    "exponential element": (
        b"\x80\x04\x8f(" + pickle.dumps(_nested(60))[2:-1] + b"\x90.",
        "CKP103",
    ),
    "many copies": (_COPIES + b".", "CKP103"),
    "colliding keys": (pickle.dumps({2**61 - 1: 1, 2 * (2**61 - 1): 2}), "CKP103"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_pickles(name: str) -> None:
    data, code = _HOSTILE[name]
    if code is None:
        assert load(data) == 1
    else:
        assert code_of(data) == code
        assert code_of(data, unknown="opaque") == code


def test_damage_is_an_error_of_ours() -> None:
    value = {"a": torch.Size([1, 2]), "b": [1, 2.5, "text", b"bytes", None, (1, 2, 3)], "c": {1, 2}}
    for protocol in (2, 4):
        data = pickle.dumps(value, protocol)
        for at in range(len(data)):
            with pytest.raises(FlexckptError):
                load(data[:at])
            for flip in (0x01, 0x10, 0x80, 0xFF):
                changed = bytes([*data[:at], data[at] ^ flip, *data[at + 1 :]])
                with contextlib.suppress(FlexckptError):
                    load(changed)


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_noise_is_an_error_of_ours(noise: bytes) -> None:
    with contextlib.suppress(FlexckptError):
        load(b"\x80\x04" + noise + b".")
