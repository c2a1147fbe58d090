# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Columns of whole numbers as few bytes that a browser decodes fast.

A packed file is the length of a JSON text (uint32, little endian), the text, and the columns one
after another; all of it compressed with gzip. The text describes each column: ``name``, ``codec``,
``type`` (of the array to make: u8, u16, i32 or f64), ``count``, ``offset`` and ``bytes``. Codecs:

- ``same``: every entry is ``value``.
- ``u8``, ``u16``: positions in the list ``table`` of the description.
- ``varint``: groups of 7 bits, the lowest first, the top bit set in all but the last.
- ``delta``: differences from the entry before, zigzag (0, -1, 1, -2 as 0, 1, 2, 3), as varint.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# What a page can count exactly: numbers of JavaScript are doubles.
MAX_EXACT = 1 << 53
_MAX_TABLE = 1 << 16


def pack(columns: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> bytes:
    """The columns and the JSON ``facts`` about them, packed. Numbers must be below 2**53."""
    described, bodies, offset = [], [], 0
    for name, values in columns.items():
        description, body = encode(np.asarray(values).astype(np.int64))
        described.append({"name": name, "offset": offset, "bytes": len(body)} | description)
        bodies.append(body)
        offset += len(body)
    text = json.dumps({"facts": facts, "columns": described}, separators=(",", ":")).encode()
    whole = len(text).to_bytes(4, "little") + text + b"".join(bodies)
    return gzip.compress(whole, compresslevel=5, mtime=0)


def encode(values: NDArray[np.int64]) -> tuple[dict[str, Any], bytes]:
    """The description and the bytes of one column."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    if max(-low, high) >= MAX_EXACT:
        raise ValueError(f"a column holds {low} to {high}, beyond what a page counts exactly")
    description: dict[str, Any] = {"type": _type(low, high), "count": len(values)}
    if low == high:
        return description | {"codec": "same", "value": low}, b""
    distinct = np.unique(values)
    if len(distinct) <= min(_MAX_TABLE, len(values) // 8):
        codec, kind = ("u8", "<u1") if len(distinct) <= 256 else ("u16", "<u2")
        index = np.searchsorted(distinct, values).astype(kind)
        return description | {"codec": codec, "table": distinct.tolist()}, index.tobytes()
    steps = np.diff(values, prepend=0)
    delta = varint(((steps << 1) ^ (steps >> 63)).astype(np.uint64))
    plain = varint(values.astype(np.uint64)) if low >= 0 else delta
    if low >= 0 and len(plain) <= len(delta):
        return description | {"codec": "varint"}, plain
    return description | {"codec": "delta"}, delta


def _type(low: int, high: int) -> str:
    if low >= 0 and high < 1 << 16:
        return "u8" if high < 1 << 8 else "u16"
    return "i32" if low >= -(1 << 31) and high < 1 << 31 else "f64"


def varint(values: NDArray[np.uint64]) -> bytes:
    """Each number in groups of 7 bits, the lowest first."""
    length = np.ones(len(values), dtype=np.int64)
    for bits in range(7, 64, 7):
        more = values >= np.uint64(1 << bits)
        if not more.any():
            break
        length += more
    start = np.cumsum(length) - length
    result = np.zeros(int(length.sum()), dtype=np.uint8)
    for group in range(int(length.max(initial=0))):
        having = np.flatnonzero(length > group)
        seven = (values[having] >> np.uint64(7 * group)) & np.uint64(127)
        more = np.where(length[having] > group + 1, np.uint64(128), np.uint64(0))
        result[start[having] + group] = (seven | more).astype(np.uint8)
    return result.tobytes()
