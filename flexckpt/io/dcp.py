# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of torch's distributed checkpoints: a folder of ``.metadata`` and ``__<rank>_<n>.distcp``.

A ``.distcp`` file is a row of ``torch.save`` archives, one per part of a tensor; where the elements
lie in an archive is found when a part is needed. Files in the safetensors format of the same writer
are read, too.
"""

import os
from collections.abc import Callable, Iterable
from math import prod
from pathlib import Path
from typing import Any

import torch

from flexckpt.boxes import c_strides
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Reader, SourceIndex, Stored
from flexckpt.io.dcp_metadata import Blob, DcpMetadata, metadata_files, read_metadata
from flexckpt.io.dcp_names import present_names
from flexckpt.io.inside import file_inside
from flexckpt.io.plain_data import json_data
from flexckpt.io.safetensors_file import HeaderEntry, read_header
from flexckpt.io.torch_file import FileTensor, read_torch_blob
from flexckpt.quiet_gc import quiet_gc

# Objects beyond this size are no settings (states of data loaders, for example), and stay unread.
# So do the deepest of very many: a flattened optimizer has a dozen settings for each parameter.
_LARGEST_OBJECT = 2**20
_MOST_OBJECTS = 4096


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a folder with the metadata of a distributed checkpoint."""
    try:
        return path.is_dir() and bool(metadata_files(path))
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """Read the metadata, and the small objects beside the tensors, which become ``extra``.

    Keys and states are those of :func:`flexckpt.io.dcp_names.present_names`. Objects that are not
    plain data are left out of ``extra``, as are those of more than 1 MiB, and of more than 4096
    objects those whose names have the most parts.

    Raises:
        CheckpointError: CKP101 if there are no metadata, CKP102 if a file is missing, CKP103 if one
            is damaged or truncated, CKP105 if the metadata ask for what is not data, CKP106 if they
            name a file outside of the folder, CKP109 for parts that were compressed.
    """
    files = metadata_files(path)
    if not files:
        raise CheckpointError("CKP101", f"{path} holds no .metadata of a distributed checkpoint")
    metadata = read_metadata(files)
    with quiet_gc():
        names = present_names(metadata.tensors, metadata.paths)
        return build_index("dcp", path, metadata, names)


def build_index(
    layout: str, path: Path, metadata: DcpMetadata, names: dict[str, tuple[str, str]]
) -> SourceIndex:
    """The index of the tensors of ``metadata`` under ``names``, and of its objects."""
    files = Files(path)
    entries: dict[tuple[str, str], Entry] = {}
    for name, tensor in metadata.tensors.items():
        shards = []
        for offset, shape, blob in tensor.chunks:
            number = files.number(blob)
            size = prod(shape) * tensor.dtype.itemsize
            if blob.length < size:
                what = f"the part of {name!r} at {offset} has {blob.length} bytes, not {size}"
                raise CheckpointError("CKP103", f"{path}: {what}")
            position = None
            if blob.length == size and size:  # an archive is never that short
                position = files.position_in_safetensors(blob, name, shape, tensor.dtype)
            shards.append(
                Stored(offset, shape, None, number, position, blob=(blob.start, blob.length))
            )
        key, state = names[name]
        entries[key, state] = Entry(key, state, tensor.shape, tensor.dtype, shards)
    shallow = sorted(metadata.objects, key=lambda name: name.count("."))[:_MOST_OBJECTS]
    extra = {name: value for name in shallow for value in files.data_of(metadata.objects[name])}
    # A global tensor is what `DTensor.full_tensor()` gives, however a mesh cuts it.
    index = SourceIndex(layout, path, files.paths, entries, extra, single_device=True)
    index.resolve = _resolver(entries.values(), files.paths)
    return index


class Files:
    """The files that metadata name, numbered as they come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[Path] = []
        self._numbers: dict[str, int] = {}
        self._sizes: list[int] = []
        self._headers: dict[tuple[str, int], dict[str, HeaderEntry]] = {}

    def number(self, blob: Blob) -> int:
        """Number of the file of a blob, which must lie in it."""
        number = self._numbers.get(blob.file)
        if number is None:
            path = file_inside(self.folder, blob.file, ".metadata")
            try:
                size = os.stat(path).st_size
            except OSError as error:
                raise CheckpointError(
                    "CKP102", f"{path} cannot be read: {error.strerror}"
                ) from None
            number = self._numbers[blob.file] = len(self.paths)
            self.paths.append(path)
            self._sizes.append(size)
        if blob.start + blob.length > self._sizes[number]:
            raise CheckpointError(
                "CKP103",
                f"{self.paths[number]} has {self._sizes[number]} bytes, but the metadata place a "
                f"tensor at {blob.start}..{blob.start + blob.length}; it is truncated",
            )
        return number

    def position_in_safetensors(
        self, blob: Blob, name: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> int:
        """Byte of a tensor in a file that the writer ended with tensors in the safetensors format.

        The metadata then tell where that format begins, and not where the tensor lies in it.
        """
        path = self.paths[self.number(blob)]
        if (blob.file, blob.start) not in self._headers:
            self._headers[blob.file, blob.start] = read_header(path, blob.start).tensors
        entry = self._headers[blob.file, blob.start].get(name)
        if entry is None or entry.shape != shape or entry.dtype != dtype:
            raise CheckpointError("CKP103", f"{path} does not hold {name!r} as the metadata tell")
        return entry.start

    def data_of(self, blob: Blob) -> list[Any]:
        """The object of a blob if it is small and plain data, in a list."""
        path = self.paths[self.number(blob)]
        if blob.length > _LARGEST_OBJECT:
            return []
        return json_data(read_torch_blob(path, blob.start, blob.length, unknown="opaque"), path)


def _resolver(entries: Iterable[Entry], files: list[Path]) -> Callable[[Stored], Stored]:
    dtypes = {(s.file, s.blob): entry.dtype for entry in entries for s in entry.shards}

    def resolve(stored: Stored) -> Stored:
        """Find the elements in the archive of a part; axes of size 1 may come before its shape."""
        if stored.position is not None or stored.blob is None:
            return stored
        path = files[stored.file]
        tensor = read_torch_blob(path, *stored.blob)
        if not isinstance(tensor, FileTensor) or tensor.dtype != dtypes.get(
            (stored.file, stored.blob)
        ):
            raise _other_tensor(path, stored)
        dense = tensor.numel == 0 or tensor.strides == c_strides(tensor.shape)
        if stored.flat_range is not None:
            start, stop = stored.flat_range
            if not dense or tensor.numel != stop - start:
                raise _other_tensor(path, stored)
            return stored._replace(position=tensor.position)
        lead = len(tensor.shape) - len(stored.shape)
        if lead < 0 or tensor.shape != (1,) * lead + stored.shape:
            raise _other_tensor(path, stored)
        strides = None if dense else tensor.strides[lead:]
        return stored._replace(position=tensor.position, strides=strides)

    return resolve


def _other_tensor(path: Path, stored: Stored) -> CheckpointError:
    where = stored.blob[0] if stored.blob else 0
    return CheckpointError(
        "CKP103", f"{path}: the archive at byte {where} holds another tensor than the metadata tell"
    )


READER = Reader("dcp", recognizes, read_index)
