# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The file form of a trace, ``vmm-trace 1``.

One line of JSON, then one line per event, numbers with commas between them, the op as a letter:

    {"format": "vmm-trace 1", "columns": ["t_ns", "op", "id", ...], "count": 2, ...}
    0,a,0,4096,0,0,0
    10,f,0,4096,0,0,0

All of it may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from vmm.errors import FormatError, Invalid
from vmm.sim.atomic_file import new_file
from vmm.sim.trace import COLUMNS, EXTRA_COLUMNS, Trace

FORMAT = "vmm-trace 1"
# Against files that grow without bound when they are decompressed.
MAX_HEADER_BYTES = 1 << 28
MAX_EVENTS = 200_000_000
_MAX_COLUMNS = 64
_MAX_ROW_BYTES = 21 * _MAX_COLUMNS
_SNIFF_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 22
_OWN_KEYS = ("format", "columns", "count")


def write(path: str | os.PathLike[str], trace: Trace) -> None:
    """Writes a trace, compressed if the name ends in ``.gz``. The file appears whole or not at all.

    Raises `vmm.errors.Invalid` if the trace breaks a rule or its header is not JSON, and OSError.
    """
    trace.validate()
    columns = trace.columns
    header = {"format": FORMAT, "columns": list(columns), "count": len(trace)}
    header |= {key: value for key, value in trace.header.items() if key not in _OWN_KEYS}
    try:
        first = json.dumps(header, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise Invalid(f"the header of the trace is not plain JSON: {error}") from None
    with new_file(path) as raw:
        if os.fspath(path).endswith(".gz"):
            # No time stamp: the same trace gives the same file.
            with gzip.GzipFile(
                fileobj=raw, mode="wb", compresslevel=5, filename="", mtime=0
            ) as file:
                _write_to(cast("IO[bytes]", file), first, columns)
        else:
            _write_to(raw, first, columns)


def _write_to(file: IO[bytes], header: str, columns: dict[str, NDArray[Any]]) -> None:
    file.write(header.encode() + b"\n")
    row = (",".join("%c" if name == "op" else "%d" for name in columns) + "\n").__mod__
    rows = 1 << 16
    for begin in range(0, len(columns["op"]), rows):
        part = [values[begin : begin + rows].tolist() for values in columns.values()]
        file.write("".join(map(row, zip(*part, strict=True))).encode("ascii"))


def read(path: str | os.PathLike[str], *, max_events: int = MAX_EVENTS) -> Trace:
    """Reads and checks a trace.

    Raises `vmm.errors.FormatError` naming the file and what is wrong with it, and OSError. The
    memory taken is bounded by the rows that are there and by `max_events`, not by the header.
    """
    try:
        with open(path, "rb") as raw:
            start = raw.read(2)
            raw.seek(0)
            if start == b"\x1f\x8b":
                with gzip.GzipFile(fileobj=raw, mode="rb") as file:
                    return read_from(cast("IO[bytes]", file), max_events)
            return read_from(raw, max_events)
    except (FormatError, Invalid) as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"{os.fspath(path)}: the compressed data is damaged: {error}") from None


def is_trace(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins like a trace. Raises OSError, and FormatError for damaged gzip data."""
    try:
        with open(path, "rb") as raw:
            start = raw.read(_SNIFF_BYTES)
            raw.seek(0)
            if start.startswith(b"\x1f\x8b"):
                with gzip.GzipFile(fileobj=raw, mode="rb") as file:
                    start = file.read(_SNIFF_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FormatError(f"{os.fspath(path)}: the compressed data is damaged: {error}") from None
    return is_trace_content(start)


def is_trace_content(start: bytes) -> bool:
    """Whether uncompressed content begins like a trace."""
    return re.match(rb"\s*\{[^\n]*\"format\"\s*:\s*\"vmm-trace ", start) is not None


def read_from(file: IO[bytes], max_events: int = MAX_EVENTS) -> Trace:
    """Reads and checks the uncompressed content of a trace file. Raises FormatError, `Invalid`."""
    header = _read_header(file.readline(MAX_HEADER_BYTES))
    names: list[str] = header["columns"]
    count: int = header["count"]
    if count > max_events:
        raise FormatError(f"the header promises {count} events; at most {max_events} are read")
    parts: list[NDArray[np.int64]] = []
    rows = 0
    for chunk in _whole_lines(file):
        parts.append(_parse(chunk, names, rows))
        rows += len(parts[-1])
        if rows > count:
            raise FormatError(f"there are more rows than the {count} that the header promises")
    if rows != count:
        raise FormatError(f"there are {rows} rows, but the header promises {count}")
    columns: dict[str, NDArray[Any]] = {}
    for number, name in enumerate(names):
        kind = COLUMNS.get(name, EXTRA_COLUMNS.get(name, np.int64))
        columns[name] = np.empty(rows, dtype=kind)
        begin = 0
        for part in parts:
            values, limits = part[:, number], np.iinfo(kind)  # type: ignore[type-var]
            if values.size and not limits.min <= values.min() <= values.max() <= limits.max:
                raise FormatError(f"column {name} holds a number beyond {limits.max}")
            columns[name][begin : begin + len(part)] = values
            begin += len(part)
    own = {name: columns.pop(name) for name in COLUMNS}
    kept = {key: value for key, value in header.items() if key not in _OWN_KEYS}
    return Trace(kept, **own, extra=columns).validate()


def _read_header(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise FormatError(f"the first line does not end within {MAX_HEADER_BYTES} bytes")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the first line is not JSON: {str(error)[:200]}") from None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise FormatError(f'the first line has no "format": "{FORMAT}"')
    names, count = header.get("columns"), header.get("count")
    if not isinstance(names, list) or not all(
        isinstance(n, str) and n.isidentifier() for n in names
    ):
        raise FormatError('"columns" of the header is not a list of names')
    missing = [name for name in COLUMNS if name not in names]
    if missing or len(set(names)) != len(names) or len(names) > _MAX_COLUMNS:
        raise FormatError(
            f'"columns" of the header lacks {missing}, repeats a name, or has over {_MAX_COLUMNS}'
        )
    if type(count) is not int or count < 0:
        raise FormatError(f'"count" of the header is {count!r}, not a number of events')
    return header


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of the file in parts that end with a line."""
    rest = b""
    while chunk := file.read(_CHUNK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield rest + chunk[:end]
            rest = chunk[end:]
        else:
            rest += chunk
        if len(rest) > _MAX_ROW_BYTES:
            raise FormatError(f"a row is longer than {_MAX_ROW_BYTES} bytes")
    if rest:
        raise FormatError("the last row is cut off: it has no line end")


def _parse(chunk: bytes, names: list[str], before: int) -> NDArray[np.int64]:
    """int64[rows, columns] of whole lines; the op is the code of its letter.

    The shape of the text is checked with whole-array operations first, so that numpy's parser only
    sees digits, signs at the start of a number, and commas.
    """
    text = np.frombuffer(chunk, dtype=np.uint8).copy()
    line_ends = text == 10
    ends = np.flatnonzero(line_ends | (text == 44))
    width = len(names)
    last = np.flatnonzero(line_ends[ends])
    expected = np.arange(1, len(last) + 1) * width - 1
    if not np.array_equal(last, expected):
        row = int(np.flatnonzero(last != expected)[0])
        raise FormatError(f"row {before + row} does not have the {width} fields of the header")
    begins = np.empty_like(ends)
    begins[0], begins[1:] = 0, ends[:-1] + 1
    lengths = (ends - begins).reshape(-1, width)
    at = names.index("op")
    letters = begins[at::width]
    misshapen = np.any((lengths < 1) | (lengths > 20), axis=1) | (lengths[:, at] != 1)
    op = text[letters].astype(np.int64)
    text[letters] = 48
    text[ends] = 44
    digit = (text >= 48) & (text <= 57)
    minus = text == 45
    allowed = digit | (text == 44)
    # A minus is the first of a number of more than one character.
    signed = begins[minus[begins]]
    allowed[signed[digit[signed + 1]]] = True
    wrong = np.flatnonzero(~allowed)
    rows = np.flatnonzero(misshapen).tolist()
    if wrong.size:
        rows.append(np.searchsorted(ends[width - 1 :: width], wrong[0]))
    if rows:
        row = int(min(rows))
        content = chunk.split(b"\n", row + 1)[row][:80].decode("latin-1")
        raise FormatError(f"row {before + row} is not made of numbers and an op: {content!r}")
    numbers = np.fromstring(text.tobytes()[:-1].decode("ascii"), dtype=np.int64, sep=",")
    # Numbers that do not fit are read as the largest that does.
    limits = np.iinfo(np.int64)
    if numbers.size and (numbers.max() == limits.max or numbers.min() == limits.min):
        raise FormatError(f"a number from row {before} on is beyond 2**63 - 2")
    table: NDArray[np.int64] = numbers.reshape(-1, width)
    table[:, at] = op
    return table
