# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of Paddle's distributed checkpoints.

They are ``{rank}_{id}.distcp`` or ``.safetensors`` and a pickle ``{id}.metadata``, which says which
shard of which tensor lies in which file. Data files are opened when a shard of theirs is needed,
and then only their description is read; see paddle_data.py. A trainer keeps several checkpoints
side by side, one of weights, one of optimizer states; its folder is read as one.
Source of the format: `paddle.distributed.flex_checkpoint.dcp` of Paddle 3.3, and files it wrote.
"""

import re
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from flexckpt.boxes import Box, box_at, full_box
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Reader, SourceIndex, Stored
from flexckpt.io.paddle_data import DTYPES, DataFile
from flexckpt.io.restricted_pickle import Plain, load_plain
from flexckpt.io.safetensors_file import MAX_AXES
from flexckpt.states import split_name

_METADATA = re.compile(r"(\d{1,18})\.metadata")
_DATA = re.compile(r"[^/\\\0]+\.(distcp|safetensors)")
_MODULES = (
    "paddle.distributed.flex_checkpoint.dcp.metadata",
    "paddle.distributed.checkpoint.metadata",  # until Paddle 3.1
)
# Where PaddleFormers' trainer puts what, in the folder of a step.
_PARTS = ("model_state", "master_weight", "optimizer_state")
_CLASSES = ("Metadata", "LocalTensorMetadata", "LocalTensorIndex")


class _Shard(NamedTuple):
    """What the metadata say of a shard; the fields that name it in both of their tables."""

    key: str
    offset: tuple[int, ...]
    flat_range: tuple[int, int] | None
    shape: tuple[int, ...]


class _Wanted(NamedTuple):
    """What to look for in a data file."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a folder with ``{id}.metadata``, such a file, or a trainer's folder."""
    try:
        if path.is_dir():
            return bool(_metadata_files(path))
        return path.is_file() and _METADATA.fullmatch(path.name) is not None
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """Read the metadata of a checkpoint; of several in one folder, those with the highest id.

    Args:
        path: the folder, or one ``{id}.metadata`` in it, or a folder with ``model_state``,
            ``master_weight`` and ``optimizer_state``, or some of them.

    Raises:
        CheckpointError: CKP101 if there are no metadata, CKP102 if a data file is missing, CKP103
            if the metadata are damaged, CKP105 if they ask for anything but data, CKP106 if they
            name a file outside of the folder, CKP109 for an unknown dtype, CKP202 if shards of a
            tensor contradict one another.
    """
    if not path.exists():
        raise CheckpointError("CKP101", f"{path} does not exist")
    parts = _metadata_files(path) if path.is_dir() else [path]
    if not parts:
        raise CheckpointError("CKP101", f"{path} holds no file named after an id, as 0.metadata")
    reader = _Index()
    for metadata in parts:
        tensors, storage = _read_metadata(metadata)
        reader.begin(metadata, storage)
        for name, shards in tensors.items():
            reader.add(name, shards)
    reader.where.clear()  # the index is sent to other ranks
    return SourceIndex("paddle", path, reader.files, reader.entries, resolve=reader.resolve)


def _metadata_files(path: Path) -> list[Path]:
    """The newest metadata of a folder, or those of the parts of a trainer's folder."""
    found = [(int(m[1]), f) for f in path.iterdir() if (m := _METADATA.fullmatch(f.name))]
    if found:
        return [max(found)[1]]
    parts = (path / name for name in _PARTS)
    return [file for part in parts if part.is_dir() for file in _metadata_files(part)]


def _read_metadata(path: Path) -> tuple[dict[str, list[Any]], dict[Any, Any]]:
    allowed = {(module, name): Plain for module in _MODULES for name in _CLASSES}
    try:
        with path.open("rb") as file:
            value = load_plain(file, allowed)
    except OSError as error:
        raise CheckpointError("CKP103", f"{path} cannot be read: {error.strerror}") from None
    tables = (
        [value.fields.get(n) for n in ("state_dict_metadata", "storage_metadata")]
        if isinstance(value, Plain)
        else [None, None]
    )
    tensors, storage = tables
    if not isinstance(tensors, dict) or not isinstance(storage, dict):
        raise CheckpointError("CKP103", f"{path} does not hold the metadata of a checkpoint")
    for name, shards in tensors.items():
        if not isinstance(name, str) or not isinstance(shards, list) or not shards:
            raise CheckpointError("CKP103", f"{path}: {name!r} does not name a list of shards")
    return tensors, storage


class _Index:
    """Entries under construction, and afterwards what completes their shards."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        self.entries: dict[tuple[str, str], Entry] = {}
        self.wanted: list[_Wanted] = []
        self.numbers: dict[Path, int] = {}
        self.data: dict[int, DataFile] = {}

    def begin(self, metadata: Path, storage: dict[Any, Any]) -> None:
        """Take the table of files of the metadata whose tensors come next."""
        self.path = metadata
        self.where: dict[_Shard, list[str]] = {}
        for index, file in storage.items():
            self._place(index, file)

    def _place(self, index: Any, file: Any) -> None:
        fields = index.fields if isinstance(index, Plain) else {}
        name = fields.get("tensor_key")
        if not isinstance(name, str) or not isinstance(file, str):
            raise CheckpointError("CKP103", f"{self.path}: a shard has no name or no file")
        if not _DATA.fullmatch(file):
            raise CheckpointError("CKP106", f"{self.path} names the data file {file[:200]!r}")
        shape = fields.get("local_shape")  # older versions do not tell
        shard = self._shard(name, fields, shape if shape is not None else ())
        self.where.setdefault(shard, []).append(file)

    def _shard(self, name: str, fields: dict[str, Any], shape: Any) -> _Shard:
        value = fields.get("flattened_range")
        flat = None if value is None else self._sizes(name, value)
        if flat is not None and len(flat) != 2:
            raise CheckpointError("CKP103", f"{self.path}: {name!r} has the range {flat}")
        offset = self._sizes(name, fields.get("global_offset"))
        return _Shard(name, offset, flat, self._sizes(name, shape))

    def _sizes(self, name: str, value: Any) -> tuple[Any, ...]:
        listed = isinstance(value, tuple | list) and len(value) <= MAX_AXES
        if listed and all(type(n) is int and 0 <= n < 2**63 for n in value):
            return tuple(value)
        raise CheckpointError("CKP103", f"{self.path}: {name!r} has a size or an offset {value!r}")

    def add(self, name: str, shards: list[Any]) -> None:
        """Take one tensor of the metadata."""
        if split_name(name) in self.entries:
            what = f"{name!r} is there twice, under two names or in two parts"
            raise CheckpointError("CKP202", f"{self.path}: {what}")
        for item in shards:
            fields = item.fields if isinstance(item, Plain) else {}
            shard = self._shard(name, fields, fields.get("local_shape"))
            dtype = fields.get("dtype")
            if not isinstance(dtype, str) or dtype not in DTYPES:
                what = f"{self.path}: {name!r} has the unknown dtype {dtype!r}"
                raise CheckpointError("CKP109", what)
            whole = fields.get("global_shape")
            shape = None if whole is None else self._sizes(name, whole)
            entry = self._entry(name, dtype, shard, shape)
            stored = shard.shape if shard.flat_range is None else (_length(shard.flat_range),)
            for file in self._files_of(shard):
                blob = (len(self.wanted), prod(stored) * DTYPES[dtype][0].itemsize)
                self.wanted.append(_Wanted(name, dtype, stored))
                number = self._number(file)
                entry.shards.append(
                    Stored(shard.offset, shard.shape, shard.flat_range, number, None, None, blob)
                )

    def _entry(self, name: str, dtype: str, shard: _Shard, shape: tuple[int, ...] | None) -> Entry:
        key = split_name(name)
        box = _box(shard)
        if box is None or (shape is not None and not _inside(shape, box)):
            what = f"{shard.shape} at {shard.offset}, range {shard.flat_range}, of {shape}"
            raise CheckpointError("CKP103", f"{self.path}: {name!r} has the shard {what}")
        guess = shape if shape is not None else box.stop
        entry = self.entries.setdefault(key, Entry(*key, guess, DTYPES[dtype][0], []))
        if shape is None and len(guess) == len(entry.shape):
            entry.shape = tuple(map(max, entry.shape, guess))
        if entry.dtype != DTYPES[dtype][0]:
            raise CheckpointError("CKP202", f"{self.path}: {name!r} has two dtypes")
        if len(entry.shape) != len(shard.shape) or shape not in (None, entry.shape):
            raise CheckpointError("CKP202", f"{self.path}: {name!r} has two global shapes")
        return entry

    def _files_of(self, shard: _Shard) -> list[str]:
        files = self.where.get(shard) or self.where.get(shard._replace(shape=()))
        if not files:
            what = f"no file holds the shard of {shard.key!r} at {shard.offset}"
            raise CheckpointError("CKP103", f"{self.path}: {what}")
        return files

    def _number(self, file: str) -> int:
        path = self.path.with_name(file)
        if path not in self.numbers:
            if not path.is_file():
                raise CheckpointError("CKP102", f"{path} is missing or is not a file")
            self.numbers[path] = len(self.files)
            self.files.append(path)
        return self.numbers[path]

    def resolve(self, stored: Stored) -> Stored:
        """The same shard with its position.

        Raises:
            CheckpointError: see :class:`DataFile` and :meth:`DataFile.locate`.
        """
        if stored.file not in self.data:
            self.data[stored.file] = DataFile(self.files[stored.file])
        assert stored.blob is not None
        position, strides = self.data[stored.file].locate(*self.wanted[stored.blob[0]])
        return stored._replace(position=position, strides=strides)


def _length(flat_range: tuple[int, int]) -> int:
    return flat_range[1] - flat_range[0]


def _box(shard: _Shard) -> Box | None:
    """The box of a shard, or None if its numbers do not fit one another."""
    if len(shard.offset) != len(shard.shape):
        return None
    if shard.flat_range is not None:
        start, stop = shard.flat_range
        if not start <= stop <= prod(shard.shape):
            return None
    return box_at(shard.offset, shard.shape)


def _inside(shape: tuple[int, ...], box: Box) -> bool:
    return len(shape) == len(box.stop) and full_box(shape).contains(box)


READER = Reader("paddle", recognizes, read_index)
