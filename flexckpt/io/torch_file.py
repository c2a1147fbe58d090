# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files of ``torch.save`` read as plain data, with the place of every tensor in it."""

import os
from pathlib import Path
from stat import S_ISREG
from typing import Any
from zlib import crc32

import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.restricted_pickle import Unknown, run_pickle
from flexckpt.io.torch_legacy import MAGIC, read_legacy
from flexckpt.io.torch_tensors import (
    TENSOR_MAKERS,
    Allowed,
    FileStorage,
    FileTensor,
    storage_dtype,
)
from flexckpt.io.zip_directory import Read, ZipEntry, read_zip_directory

__all__ = ["FileStorage", "FileTensor", "materialize", "read_torch_blob", "read_torch_file"]

_LARGEST_PICKLE = 2**29


def read_torch_file(
    path: Path, *, unknown: Unknown = "error", allowed: Allowed | None = None
) -> Any:
    """What ``torch.save`` wrote to ``path``, with a :class:`FileTensor` for every tensor.

    No element of a tensor is read, and nothing of the file is executed.

    Args:
        path: of the file, in the zip format or in the one of torch before 1.6.
        unknown: "opaque" makes an inert ``Opaque`` of an object of a class that is not plain data;
            "error" refuses the file.
        allowed: further globals and what makes a value of them; see
            ``restricted_pickle.load_plain``.

    Raises:
        CheckpointError: CKP102 if there is no file, CKP103 if it is damaged, CKP105 if it asks for
            what is not data, CKP109 if it is of another format.
    """
    return _read(path, 0, None, unknown, allowed or {})


def read_torch_blob(
    path: Path,
    offset: int,
    length: int,
    *,
    unknown: Unknown = "error",
    allowed: Allowed | None = None,
) -> Any:
    """As :func:`read_torch_file`, of the archive in bytes ``[offset, offset + length)`` of a file.

    The positions of tensors are those in the whole file.

    Raises:
        CheckpointError: as :func:`read_torch_file`.
    """
    return _read(path, offset, length, unknown, allowed or {})


def materialize(tensor: FileTensor, path: Path) -> torch.Tensor:
    """The tensor in ``path`` that ``tensor`` describes, as a new tensor on the CPU.

    Raises:
        CheckpointError: CKP103 if the file ends before it.
    """
    if tensor.numel == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    size = tensor.dtype.itemsize
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True))
    with path.open("rb") as file:
        file.seek(tensor.position)
        data = file.read(span * size)
    if len(data) != span * size:
        raise CheckpointError("CKP103", f"{path} ends inside a tensor; it is truncated")
    flat = torch.frombuffer(bytearray(data), dtype=tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.strides).clone()


def _read(path: Path, offset: int, length: int | None, unknown: Unknown, allowed: Allowed) -> Any:
    """The archive in a part of a file; up to its end if ``length`` is None."""
    try:
        # Without blocking: opening a pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise CheckpointError("CKP102", f"{path} cannot be read: {error.strerror}") from None
    try:
        facts = os.fstat(handle)
        if not S_ISREG(facts.st_mode):
            raise CheckpointError("CKP103", "it is not a file")
        length = facts.st_size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > facts.st_size:
            what = f"bytes [{offset}, {offset + length}) leave the file; is it truncated?"
            raise CheckpointError("CKP103", what)
        read = _reader(handle, offset, length)
        if read(0, min(length, len(MAGIC))) == MAGIC:
            if offset:
                raise CheckpointError("CKP109", "a part of the file has the format of torch 1.5")
            return read_legacy(handle, unknown, allowed)
        return _read_archive(read, offset, length, unknown, allowed)
    except FlexckptError as error:
        raise CheckpointError(error.code, f"{path}: {error.message}") from error.__cause__
    except OSError as error:
        raise CheckpointError("CKP103", f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def _reader(handle: int, offset: int, length: int) -> Read:
    def read(at: int, count: int) -> bytes:
        if at < 0 or count < 0 or at + count > length:
            raise CheckpointError("CKP103", f"{count} bytes at {at} leave the archive")
        part = os.pread(handle, count, offset + at)
        if len(part) != count:
            raise CheckpointError("CKP103", f"{count} bytes at {at} could not be read")
        return part

    return read


def _read_archive(read: Read, base: int, length: int, unknown: Unknown, allowed: Allowed) -> Any:
    entries = read_zip_directory(read, length)
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError("CKP109", "the zip archive is not one that torch.save wrote")
    root = pickles[0].removesuffix("data.pkl")
    _check_byte_order(read, entries.get(root + "byteorder"))
    entry = entries[pickles[0]]
    if entry.size > _LARGEST_PICKLE:
        raise CheckpointError("CKP109", "a data.pkl of more than 512 MiB is not read")
    data = read(entry.position, entry.size)
    if entry.crc and crc32(data) != entry.crc:
        raise CheckpointError("CKP103", "the checksum of data.pkl does not match")
    makers = {**TENSOR_MAKERS, **allowed}

    def storage(reference: Any) -> FileStorage:
        return _storage(reference, entries, root, base)

    return run_pickle(data, 0, "data.pkl", makers, storage, unknown=unknown).value


def _check_byte_order(read: Read, entry: ZipEntry | None) -> None:
    order = b"little" if entry is None else read(entry.position, min(entry.size, 16))
    if order != b"little":
        raise CheckpointError("CKP109", f"tensors in byte order {order!r} are not supported")


def _storage(reference: Any, entries: dict[str, ZipEntry], root: str, base: int) -> FileStorage:
    """The storage of a persistent id: ``("storage", class, key, device, number of elements)``."""
    tag, kind, key, _, count = reference
    if tag != "storage" or type(count) is not int:
        raise CheckpointError("CKP105", "the pickle refers to something that is not a storage")
    dtype = storage_dtype(kind)
    entry = entries.get(f"{root}data/{key}")
    if entry is None:
        raise CheckpointError("CKP103", f"the storage {key!r} is missing")
    if entry.size != count * dtype.itemsize:
        raise CheckpointError(
            "CKP103", f"the storage {key!r} must have {count} elements, but {entry.size} bytes"
        )
    return FileStorage(dtype, base + entry.position, entry.size)
