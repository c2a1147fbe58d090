# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
from __future__ import annotations

import errno
import gzip
import json
import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmm.errors import FormatError, Invalid
from vmm.sim import trace_file
from vmm.sim.atomic_file import new_file
from vmm.sim.trace import Trace, from_events

HEADER = (
    '{"format":"vmm-trace 1","columns":["t_ns","op","id","bytes","stream","pool","tag"],"count":2'
)
TEXT = HEADER + ',"source":"by hand"}\n0,a,7,4096,1,0,0\n10,f,7,0,0,0,0\n'


def small() -> Trace:
    return from_events([(0, "a", 7, 4096, 1), (10, "f", 7)], {"source": "by hand"})


def test_the_file_is_one_line_of_json_and_a_line_for_each_event(tmp_path: Path) -> None:
    path = tmp_path / "x.vmmtrace"
    trace_file.write(path, small())
    assert path.read_text() == TEXT
    trace_file.write(tmp_path / "x.vmmtrace.gz", small())
    assert gzip.decompress((tmp_path / "x.vmmtrace.gz").read_bytes()).decode() == TEXT


def test_the_same_trace_gives_the_same_compressed_file(tmp_path: Path) -> None:
    for name in ("a.gz", "b.gz"):
        trace_file.write(tmp_path / name, small())
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_the_content_decides_whether_it_is_compressed(tmp_path: Path) -> None:
    (tmp_path / "plain.gz").write_text(TEXT)
    (tmp_path / "packed").write_bytes(gzip.compress(TEXT.encode()))
    for name in ("plain.gz", "packed"):
        assert trace_file.read(tmp_path / name).bytes.tolist() == [4096, 0]


numbers = st.integers(-(2**63) + 1, 2**63 - 2)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 2**40), numbers, numbers), max_size=30), gz=st.booleans()
)
def test_what_is_written_is_read(
    rows: list[tuple[int, int, int]], gz: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    events = [(at * 3, "a", at, row[0], at % 5, at % 3, at % 2) for at, row in enumerate(rows)]
    trace = from_events(events, {"tags": ["", "ü"], "stacks": [[["f.py", 3, "f"]]], "seed": 4})
    trace.extra = {
        "addr": np.array([row[1] for row in rows], np.int64),
        "own": np.array([row[2] for row in rows], np.int64),
    }
    path = tmp_path_factory.mktemp("t") / ("t.gz" if gz else "t")
    trace_file.write(path, trace)
    again = trace_file.read(path)
    assert again.header == trace.header
    assert again.columns.keys() == trace.columns.keys()
    for name, column in trace.columns.items():
        assert again.columns[name].tolist() == column.tolist()
        assert again.columns[name].dtype == column.dtype


def test_rows_beyond_one_part_of_the_file(tmp_path: Path) -> None:
    count = 250_000  # about 5 MB, more than is parsed at once
    ids = np.arange(count)
    columns = dict(
        zip(small().columns, (ids * 10, np.full(count, 97), ids, ids % 977 + 1), strict=False)
    )
    zero = np.zeros(count, np.int32)
    trace = Trace({"source": "many"}, **columns, stream=zero, pool=zero, tag=zero)
    trace_file.write(tmp_path / "t", trace)
    again = trace_file.read(tmp_path / "t")
    assert np.array_equal(again.bytes, trace.bytes)
    assert np.array_equal(again.t_ns, trace.t_ns)


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.vmmtrace"
    trace_file.write(path, small())
    bad = small()
    bad.header["what"] = object()
    with pytest.raises(Invalid, match="the header of the trace is not plain JSON"):
        trace_file.write(path, bad)
    bad = small()
    bad.bytes[0] = 0
    with pytest.raises(Invalid, match="allocates 0 bytes"):
        trace_file.write(path, bad)
    assert path.read_text() == TEXT
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.vmmtrace"]


def test_a_folder_that_is_not_there_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        trace_file.write(tmp_path / "no" / "x", small())
    with pytest.raises(OSError, match="No such file"):
        trace_file.read(tmp_path / "no")


# Contents, and what is said of them.
DAMAGED = {
    "empty": ("", "the first line does not end"),
    "no header": ("1,2,3\n", "the first line is not JSON"),
    "not JSON": ("{]\n", "the first line is not JSON"),
    "deep": ("[" * 100_000 + "\n", "the first line is not JSON"),
    "other format": ('{"format": "vmm-trace 9"}\n', 'no "format": "vmm-trace 1"'),
    "no columns": ('{"format": "vmm-trace 1", "count": 1}\n', "is not a list of names"),
    "missing column": (TEXT.replace('"id",', ""), "lacks \\['id'\\]"),
    "repeated column": (TEXT.replace('"tag"]', '"tag","tag"]'), "repeats a name"),
    "count": (TEXT.replace('"count":2', '"count":-1'), '"count" of the header is -1'),
    "count is no number": (
        TEXT.replace('"count":2', '"count":true'),
        '"count" of the header is True',
    ),
    "promises more": (
        TEXT.replace('"count":2', '"count":3'),
        "there are 2 rows, but the header promises 3",
    ),
    "promises less": (TEXT.replace('"count":2', '"count":1'), "more rows than the 1"),
    "promises far too much": (
        TEXT.replace('"count":2', '"count":99999999999999'),
        "at most 200000000 are read",
    ),
    "cut": (TEXT[:-4], "the last row is cut off"),
    "field too many": (TEXT.replace("10,f", "1,0,f"), "row 1 does not have the 7 fields"),
    "field missing": (TEXT.replace("0,a,7", "a,7"), "row 0 does not have the 7 fields"),
    "blank line": (TEXT.replace("\n10", "\n\n10"), "row 1 does not have the 7 fields"),
    "empty field": (TEXT.replace("4096", ""), "row 0 is not made of numbers and an op"),
    "letter": (TEXT.replace("4096", "4x96"), "row 0 is not made of numbers and an op: '0,a,7,4x96"),
    "blank": (TEXT.replace("4096", "4 96"), "row 0 is not made of numbers"),
    "point": (TEXT.replace("10,f", "1.5,f"), "row 1 is not made of numbers"),
    "sign inside": (TEXT.replace("4096", "40-96"), "row 0 is not made of numbers"),
    "sign alone": (TEXT.replace("4096", "-"), "row 0 is not made of numbers"),
    "two signs": (TEXT.replace("4096", "--4"), "row 0 is not made of numbers"),
    "long op": (TEXT.replace(",f,", ",ff,"), "row 1 is not made of numbers and an op"),
    "long number": (TEXT.replace("4096", "9" * 30), "row 0 is not made of numbers"),
    "large number": (TEXT.replace("4096", "9" * 19), "beyond 2\\*\\*63"),
    "large stream": (
        TEXT.replace("4096,1", "4096,3000000000"),
        "column stream holds a number beyond 2147483647",
    ),
    "endless row": (TEXT + "1" * 100_000, "a row is longer than"),
    "rule": (TEXT.replace("10,f,7", "10,f,8"), "event 1 of the trace frees id 8, which is never"),
    "unknown op": (TEXT.replace(",f,", ",q,"), "event 1 of the trace has an unknown op, code 113"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_with_the_file(case: str, tmp_path: Path) -> None:
    content, text = DAMAGED[case]
    for name, data in (("t", content.encode()), ("t.gz", gzip.compress(content.encode()))):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(FormatError, match=f"{path}: .*{text}"):
            trace_file.read(path)


def test_damaged_compression_is_named(tmp_path: Path) -> None:
    packed = gzip.compress(TEXT.encode())
    for number, data in enumerate(
        (packed[:-9], packed[:12] + b"\xff\xff" + packed[14:], packed[:2])
    ):
        path = tmp_path / str(number)
        path.write_bytes(data)
        with pytest.raises(FormatError, match="the compressed data is damaged"):
            trace_file.read(path)


def test_what_follows_the_promised_rows_is_not_read_to_its_end(tmp_path: Path) -> None:
    rows = b"0,a,7,4096,1,0,0\n" * 5_000_000  # 85 MB out of 80 kB
    (tmp_path / "t").write_bytes(gzip.compress(HEADER.encode() + b"}\n" + rows, 1))
    with pytest.raises(FormatError, match="more rows than the 2"):
        trace_file.read(tmp_path / "t")


@settings(max_examples=150, deadline=None)
@given(at=st.integers(0, len(TEXT) - 1), with_=st.binary(max_size=3), width=st.integers(0, 3))
def test_any_change_is_read_or_refused(
    at: int, with_: bytes, width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = TEXT.encode()
    path = tmp_path_factory.mktemp("t") / "t"
    path.write_bytes(data[:at] + with_ + data[at + width :])
    with suppress(FormatError):
        trace_file.read(path).validate()


def test_own_keys_of_the_header_are_not_taken_from_the_trace(tmp_path: Path) -> None:
    trace = small()
    trace.header |= {"count": 99, "columns": [], "format": "x"}
    trace_file.write(tmp_path / "t", trace)
    first = json.loads((tmp_path / "t").read_text().split("\n")[0])
    assert (first["format"], first["count"], len(first["columns"])) == ("vmm-trace 1", 2, 7)


def test_a_file_that_cannot_be_written_is_named_as_asked_for(tmp_path: Path) -> None:
    wanted = tmp_path / "no folder" / "t.vmmtrace"
    with pytest.raises(FileNotFoundError) as missing:
        trace_file.write(wanted, small())
    assert missing.value.filename == str(wanted)
    with (
        pytest.raises(OSError, match=r"t\.npy: 9 requested and 2 written"),
        new_file(tmp_path / "t.npy"),
    ):
        raise OSError("9 requested and 2 written")
    full = pytest.raises(OSError, match=r"No space left on device: .*t\.npy")
    with full, new_file(tmp_path / "t.npy"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
