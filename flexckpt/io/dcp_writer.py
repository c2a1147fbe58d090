# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writer of folders that ``torch.distributed.checkpoint.load`` reads.

Every rank writes its file, one process then writes the metadata from the records of all of them.
"""

import io
import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from flexckpt.errors import CheckpointError
from flexckpt.io.dcp_metadata import METADATA
from flexckpt.io.ranged import bytes_of
from flexckpt.io.torch_archive import around

_ALIGN = 64

DcpShard = tuple[str, Sequence[int], Sequence[int], torch.Tensor]


class DcpRecord(NamedTuple):
    """A part of a tensor, or an object, that was written: what the metadata say of it.

    Attributes:
        name: in the flattened state dict.
        dtype, global_shape: of the whole tensor; None for an object.
        offset, shape: of the part.
        file: name in the folder.
        start, length: where its archive lies in the file.
    """

    name: str
    dtype: torch.dtype | None
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    length: int


def file_name(rank: int) -> str:
    return f"__{rank}_0.distcp"


def write_rank_file(
    path: Path, rank: int, shards: Iterable[DcpShard], objects: Mapping[str, Any] | None = None
) -> list[DcpRecord]:
    """Write the shards of one rank into the folder ``path``.

    Args:
        path: of an existing folder.
        rank: gives the name of the file.
        shards: name, global shape, offset in the global tensor, and the tensor: the local box, of
            any strides and on any device. One tensor is copied at a time where it must be.
        objects: what goes beside the tensors, by name; of types that ``torch.load`` allows with
            ``weights_only=True``.

    Raises:
        CheckpointError: CKP108 if the file cannot be written.
    """
    name = file_name(rank)
    records = []
    try:
        with (path / name).open("wb", buffering=0) as file:
            for key, global_shape, offset, tensor in shards:
                tensor = tensor.detach()
                start, length = _write_tensor(file, tensor)
                records.append(
                    DcpRecord(
                        key,
                        tensor.dtype,
                        tuple(global_shape),
                        tuple(offset),
                        tuple(tensor.shape),
                        name,
                        start,
                        length,
                    )
                )
            for key, value in (objects or {}).items():
                start, length = _write_object(file, value)
                records.append(DcpRecord(key, None, (), (), (), name, start, length))
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError("CKP108", f"{path / name}: {error.strerror}") from error
    return records


def write_metadata(path: Path, records: Iterable[DcpRecord]) -> None:
    """Write the metadata of a folder, from the records of all ranks.

    Where several ranks wrote one box of a tensor, the first record counts.

    Raises:
        CheckpointError: CKP108 if the file cannot be written, CKP202 if records contradict one
            another.
    """
    # Importing them takes longer than most saves, and only one process writes metadata.
    from torch.distributed.checkpoint import filesystem
    from torch.distributed.checkpoint import metadata as dcp

    entries: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    for record in records:
        info = filesystem._StorageInfo(record.file, record.start, record.length)
        if record.dtype is None:
            entries.setdefault(record.name, dcp.BytesStorageMetadata())
            places.setdefault(dcp.MetadataIndex(record.name), info)
            continue
        size = torch.Size(record.global_shape)
        entry = entries.get(record.name)
        if entry is None:
            properties = dcp.TensorProperties(dtype=record.dtype)
            entry = dcp.TensorStorageMetadata(properties, size, chunks=[])
            entries[record.name] = entry
        if (
            not isinstance(entry, dcp.TensorStorageMetadata)
            or entry.properties.dtype != record.dtype
            or entry.size != size
        ):
            raise CheckpointError(
                "CKP202", f"the ranks wrote {record.name!r} with different shapes or dtypes"
            )
        index = dcp.MetadataIndex(record.name, record.offset, len(entry.chunks))
        if index not in places:
            places[index] = info
            chunk = dcp.ChunkStorageMetadata(torch.Size(record.offset), torch.Size(record.shape))
            entry.chunks.append(chunk)
    paths = {name: (name,) for name in entries}
    metadata = dcp.Metadata(entries, planner_data=paths, storage_data=places)
    metadata.version = filesystem.CURRENT_DCP_VERSION
    try:
        with (path / METADATA).open("wb") as file:
            pickle.dump(metadata, file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError("CKP108", f"{path / METADATA}: {error.strerror}") from error


def _write_tensor(file: BinaryIO, tensor: torch.Tensor) -> tuple[int, int]:
    """Append the archive of a tensor at an aligned place; where it starts, and its length."""
    tensor = tensor.cpu().resolve_conj().resolve_neg().contiguous()
    head, tail = around(tensor.dtype, tuple(tensor.shape))
    size = tensor.numel() * tensor.dtype.itemsize
    first = tensor.storage_offset() * tensor.dtype.itemsize
    end = file.tell()
    start = end + -end % _ALIGN
    _write(file, bytes(start - end) + head, bytes_of(tensor)[first : first + size], tail)
    return start, len(head) + size + len(tail)


def _write_object(file: BinaryIO, value: Any) -> tuple[int, int]:
    out = io.BytesIO()
    torch.save(value, out)
    start = file.tell()
    _write(file, out.getvalue())
    return start, len(out.getvalue())


def _write(file: BinaryIO, *parts: bytes | memoryview) -> None:
    for part in parts:
        rest = memoryview(part)
        while rest:
            rest = rest[file.write(rest) :]
