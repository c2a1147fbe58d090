# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The content tells the format, whatever the name says."""

from __future__ import annotations

import gzip
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.traces.test_logs import PADDLE, RMM, STALLOC, memory
from tests.vmm.traces.test_snapshots import lite, sample
from tests.vmm.traces.test_trace_file import TEXT
from vmm.errors import FormatError
from vmm.sim.readers import content, read_any, read_snapshot

# Content, and how many events are in it.
KINDS = {
    "own": (TEXT.encode(), 2),
    "pickle": (pickle.dumps(sample(), 4), 7),
    "lite": (json.dumps(lite()).encode(), 3),
    "snapshot as JSON": (json.dumps(sample()).encode(), 7),
    "profile": (json.dumps({"schemaVersion": 1, "traceEvents": [memory(1, 2, 3)]}).encode(), 1),
    "events of a profile": (json.dumps([{"ph": "M"}, memory(1, 2, 3)], indent=1).encode(), 1),
    "RMM": (RMM, 5),
    "STAlloc": (STALLOC, 8),
    "Paddle": (PADDLE, 3),
}


def zipped(data: bytes, path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inside/data.bin", data)


WRAPPED: dict[str, Callable[[bytes, Path], object]] = {
    "plain": lambda data, path: path.write_bytes(data),
    "gzip": lambda data, path: path.write_bytes(gzip.compress(data)),
    "zip": zipped,
    "gzip in zip": lambda data, path: zipped(gzip.compress(data), path),
}


@pytest.mark.parametrize("wrapping", WRAPPED)
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_found(kind: str, wrapping: str, tmp_path: Path) -> None:
    data, events = KINDS[kind]
    path = tmp_path / "name.that.says.nothing"
    WRAPPED[wrapping](data, path)
    assert len(read_any(path)) == events


def test_snapshots_with_their_segments(tmp_path: Path) -> None:
    for kind in ("pickle", "lite", "snapshot as JSON"):
        (tmp_path / "x").write_bytes(KINDS[kind][0])
        assert read_snapshot(tmp_path / "x").reserved > 0
    for kind in ("own", "profile", "STAlloc"):
        (tmp_path / "x").write_bytes(KINDS[kind][0])
        with pytest.raises(FormatError, match="a trace of requests, not a torch snapshot"):
            read_snapshot(tmp_path / "x")


REFUSED = {
    "nothing": (b"", "none of the formats that are read: vmm-trace, torch snapshot"),
    "text": (b"hello\n", "none of the formats"),
    "zeros": (b"\0" * 100, "none of the formats"),
    "JSON": (b'{"a": 1}', r"of no format that is read: it has the keys \['a'\]"),
    "half JSON": (b'{"a": ', "this is not JSON"),
    "deep JSON": (b"[" * 10**6, "this is not JSON"),
    "long number": (b'{"segments": [' + b"9" * 10_000 + b"]}", "this is not JSON"),
    "a list": (b"[1]", "segment 0 is 1, not a table"),
    "evil": (b"\x80\x04cos\nsystem\n.", "opcode GLOBAL at byte 2: only plain data is read"),
    "bad gzip": (b"\x1f\x8b\x08" + b"x" * 50, "the compressed data is damaged"),
    "bad zip": (b"PK\x03\x04" + b"x" * 50, "the compressed data is damaged"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_named(case: str, tmp_path: Path) -> None:
    data, text = REFUSED[case]
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=f"{re.escape(str(path))}: .*{text}"):
        read_any(path)


def test_a_device_cannot_be_chosen_where_there_is_no_choice(tmp_path: Path) -> None:
    for kind in ("own", "RMM", "STAlloc"):
        (tmp_path / "x").write_bytes(KINDS[kind][0])
        with pytest.raises(FormatError, match="device 0 was chosen, but this format names no"):
            read_any(tmp_path / "x", device=0)
    for kind in ("pickle", "lite", "profile", "Paddle"):
        (tmp_path / "x").write_bytes(KINDS[kind][0])
        assert len(read_any(tmp_path / "x", device=0)) == KINDS[kind][1]
        with pytest.raises(FormatError, match="nothing is recorded of device 5; there are: 0"):
            read_any(tmp_path / "x", device=5)


def test_files_that_are_not_there_or_folders(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_any(tmp_path / "x")
    with pytest.raises(OSError, match="Is a directory"):
        read_any(tmp_path)


def test_a_zip_of_several_files_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x", "w") as archive:
        archive.writestr("a", "1")
        archive.writestr("b", "2")
    with pytest.raises(FormatError, match="the zip file holds 2 files, not one"):
        read_any(tmp_path / "x")


def test_content_that_grows_too_much_is_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"\0" * 100_000_000, 9)  # to a thousandth
    (tmp_path / "x").write_bytes(packed)
    with pytest.raises(FormatError, match="the content is longer than 67108864 bytes"):
        content.load(tmp_path / "x")


def test_content_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b"\0" * 50_000_000, 1))
    with pytest.raises(FormatError, match="the content is longer than 1000000 bytes"):
        content.load(tmp_path / "x", 1_000_000)


@settings(max_examples=300, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    cuts=st.lists(
        st.tuples(st.floats(0, 1), st.integers(0, 30), st.binary(max_size=6)), max_size=3
    ),
)
def test_any_damage_is_read_or_refused(
    kind: str, cuts: list[tuple[float, int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = KINDS[kind][0]
    for place, width, new in cuts:
        at = int(place * len(data))
        data = data[:at] + new + data[at + width :]
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(data)
    with suppress(FormatError):
        read_any(path).validate()
