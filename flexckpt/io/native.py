# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt's own layout: safetensors files, one per rank, and a JSON index.

    index.json                 format, version, checksum of this text, files, tensors, extra
    rank-00000.safetensors     one entry per shard, named "key@state#number"

The index alone tells where every shard lies; the names in the files are for people. Every file
begins with a random mark that the index repeats, so that files of two checkpoints are never taken
for one.
"""

import json
import os
import re
import secrets
from collections.abc import Container, Mapping, Sequence
from math import prod
from pathlib import Path
from stat import S_ISREG
from typing import Any, NamedTuple

import torch
import xxhash

from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Reader, SourceIndex, Stored
from flexckpt.io.inside import file_inside
from flexckpt.io.safetensors_file import (
    DTYPES,
    MAX_AXES,
    METADATA,
    NAMES,
    HeaderEntry,
    build_header,
)

FORMAT = "flexckpt"
VERSION = 1
INDEX = "index.json"
_UNSIGNED = "0" * 16
MAX_INDEX = 4 << 30  # bytes


class Record(NamedTuple):
    """A shard that was written: what the index says of it."""

    key: str
    state: str
    dtype: torch.dtype
    global_shape: tuple[int, ...]
    stored: Stored


class RankFile(NamedTuple):
    """What the index says of the file of a rank."""

    size: int
    mark: str
    records: list[Record]


def file_name(rank: int) -> str:
    return f"rank-{rank:05d}.safetensors"


def new_header(
    tensors: Sequence[tuple[str, torch.dtype, tuple[int, ...]]],
) -> tuple[bytes, dict[str, HeaderEntry], RankFile]:
    """The first bytes of a new file, where its tensors then lie, and a record without shards."""
    mark = secrets.token_hex(8)
    header, places = build_header(tensors, {"mark": mark})
    size = max([len(header), *(place.stop for place in places.values())])
    return header, places, RankFile(size, mark, [])


def _marked(mark: str) -> bytes:
    """What a file with this mark holds behind the length of its header."""
    return f'{{"{METADATA}":{{"mark":"{mark}"}}'.encode()


def index_text(
    files: Sequence[RankFile], extra: Mapping[str, Any], by_mesh: Container[str] = ()
) -> str:
    """The text of index.json.

    Args:
        files: of all ranks.
        extra: what the user wants kept beside the tensors, of JSON types.
        by_mesh: keys whose shards follow from the placements of a DTensor.
    """
    tensors: dict[str, dict[str, dict[str, Any]]] = {}
    for key, state, dtype, shape, s in (record for file in files for record in file.records):
        states = tensors.setdefault(key, {})
        if state not in states:
            mesh = {"by_mesh": True} if key in by_mesh else {}
            states[state] = {"dtype": NAMES[dtype], "shape": shape, **mesh, "shards": []}
        states[state]["shards"].append(
            [s.file, s.position, s.offset, s.shape, s.flat_range, s.checksum]
        )
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "checksum": _UNSIGNED,
        "files": [[file_name(rank), f.size, f.mark] for rank, f in enumerate(files)],
        "extra": extra,
        "tensors": tensors,
    }
    return signed(json.dumps(fields, separators=(",", ":"), ensure_ascii=False))


def signed(text: str) -> str:
    """The text of an index with its own checksum, which stands before anything that varies."""
    digest = xxhash.xxh3_64_hexdigest(text.encode())
    return text.replace(f'"checksum":"{_UNSIGNED}"', f'"checksum":"{digest}"', 1)


def _check_signature(data: bytes, digest: str) -> None:
    text = data.replace(f'"checksum":"{digest}"'.encode(), f'"checksum":"{_UNSIGNED}"'.encode(), 1)
    if xxhash.xxh3_64_hexdigest(text) != digest:
        raise CheckpointError("CKP107", f"{INDEX} was changed: its checksum is not {digest:.20}")


def recognizes(path: Path) -> bool:
    where = path / INDEX
    try:
        if (path / file_name(0)).exists():  # whatever became of the index
            return True
        if not where.is_file():  # opening a pipe would wait for a writer
            return False
        with where.open("rb") as file:
            return b'"flexckpt"' in file.read(64)
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """The index of a checkpoint that :func:`flexckpt.save` wrote.

    Raises:
        CheckpointError: CKP102, CKP103, CKP106 or CKP107 where the index is not as it should be, or
            a file that is here has another size.
    """
    where = path / INDEX
    try:
        found = where.stat()
        if not S_ISREG(found.st_mode) or found.st_size > MAX_INDEX:
            raise CheckpointError("CKP103", f"{where} is not a file of at most {MAX_INDEX} bytes")
        data = where.read_bytes()
        fields = json.loads(data)
    except FileNotFoundError:
        raise CheckpointError("CKP102", f"{where} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError("CKP103", f"{where} cannot be read: {error}") from None
    try:
        return _index_of(path, fields, data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, CheckpointError):
            raise
        what = f"{type(error).__name__}: {error}"[:300]
        raise CheckpointError("CKP103", f"{where} is not an index of flexckpt ({what})") from None


def _index_of(path: Path, fields: Any, data: bytes) -> SourceIndex:
    if fields["format"] != FORMAT:
        raise ValueError(f"its format is {fields['format']!r}")
    if fields["version"] != VERSION:
        raise CheckpointError(
            "CKP109", f"{path / INDEX} has version {fields['version']!s:.20}, known is {VERSION}"
        )
    _check_signature(data, fields["checksum"])
    files, sizes, marks = [], [], []
    for name, size, mark in fields["files"]:
        files.append(file_inside(path, name, INDEX))
        sizes.append(_count(size))
        if not re.fullmatch("[0-9a-f]{16}", mark):
            raise ValueError(f"{name!r} has the mark {mark!r}")
        marks.append(_marked(mark))
    for file, size in zip(files, sizes, strict=True):
        if os.path.exists(file) and (there := file.stat().st_size) != size:
            raise CheckpointError("CKP103", f"{file} has {there} bytes, it was saved with {size}")
    left = list(sizes)
    entries = {}
    for key, states in fields["tensors"].items():
        for state, tensor in states.items():
            dtype, shape = DTYPES[tensor["dtype"]], _counts(tensor["shape"])
            if len(shape) > MAX_AXES or prod(max(n, 1) for n in shape) >= 2**63:
                raise ValueError(f"{key!r} has {len(shape)} axes of lengths {shape}")
            shards = [
                _stored(key, shard, len(shape), dtype.itemsize, sizes) for shard in tensor["shards"]
            ]
            for s in shards:
                left[s.file] -= s.span * dtype.itemsize
            by_mesh = tensor.get("by_mesh") is True
            entries[key, state] = Entry(key, state, shape, dtype, shards, by_mesh)
    if min(left, default=0) < 0:  # a small file must not stand for a huge tensor
        raise ValueError("shards share bytes of a file")
    extra = fields["extra"]
    if not isinstance(extra, dict):
        raise TypeError("extra is not an object")
    return SourceIndex("flexckpt", path, files, entries, extra, marks=marks)


def _stored(key: str, fields: Any, rank: int, itemsize: int, sizes: list[int]) -> Stored:
    file, position, offset, shape, flat, checksum = fields
    box = _counts(offset), _counts(shape)
    flat_range = None if flat is None else _counts(flat)
    if flat_range is not None and (len(flat_range) != 2 or flat_range[0] > flat_range[1]):
        raise ValueError(f"{key!r} has the flat range {flat!r}")
    if checksum is not None and not isinstance(checksum, str):
        raise ValueError(f"{key!r} has the checksum {checksum!r}")
    if not len(offset) == len(shape) == rank:
        raise ValueError(f"{key!r} has a shard at {offset} of shape {shape}")
    stored = Stored(*box, flat_range, _count(file), _count(position), None, None, checksum)
    if flat_range is not None and flat_range[1] > prod(box[1]):
        raise ValueError(f"{key!r} has the flat range {flat!r} in a box of shape {shape}")
    if position + stored.span * itemsize > sizes[stored.file]:
        raise ValueError(f"{key!r} has a shard that reaches past the end of its file")
    return stored


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _counts(values: Any) -> Any:
    return tuple(map(_count, values))


READER = Reader("flexckpt", recognizes, read_index)
