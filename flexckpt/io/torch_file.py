# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files of ``torch.save`` read as plain data, with the place of every tensor in it."""

import os
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.restricted_pickle import Build, Opaque, Unknown, run_pickle, size_of
from flexckpt.io.zip_directory import Read, ZipEntry, read_zip_directory

Allowed = Mapping[tuple[str, str], Callable[..., Any]]

# How many elements a tensor may have beyond those that its storage has (`expand` repeats them).
_MOST_REPEATED = 2**20
_LARGEST_PICKLE = 2**31
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."

STORAGES: dict[str, torch.dtype] = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
    "UntypedStorage": torch.uint8,
}
_TENSOR_TYPES = (
    ("torch", "Tensor"),
    ("torch._tensor", "Tensor"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn.parameter", "Buffer"),
)
# Classes that a pickle may name, but not call.
_NAMES = (
    *_TENSOR_TYPES,
    *(("torch", name) for name in STORAGES),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
)


class FileTensor(NamedTuple):
    """A tensor that lies in a file.

    Attributes:
        dtype: of its elements.
        shape, strides: in elements, as torch has them.
        position: byte of its first element in the file.
        storage: byte of the first element of its storage: tensors that share one have the same.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    position: int
    storage: int

    @property
    def numel(self) -> int:
        return prod(self.shape)


class FileStorage(NamedTuple):
    """A storage in a file: dtype of its elements, its first byte, and how many bytes there are."""

    dtype: torch.dtype
    position: int
    nbytes: int


def read_torch_file(
    path: Path, *, unknown: Unknown = "error", allowed: Allowed | None = None
) -> Any:
    """What ``torch.save`` wrote to ``path``, with a :class:`FileTensor` for every tensor.

    No element of a tensor is read, and nothing of the file is executed.

    Args:
        path: of a file in the zip format of torch 1.6 and later.
        unknown: "opaque" makes an inert ``Opaque`` of an object of a class that is not plain data;
            "error" refuses the file.
        allowed: further globals and what makes a value of them; see
            ``restricted_pickle.load_plain``.

    Raises:
        CheckpointError: CKP102 if there is no file, CKP103 if it is damaged, CKP105 if it asks for
            what is not data, CKP109 if it is of another format.
    """
    try:
        length = path.stat().st_size
    except OSError as error:
        raise CheckpointError("CKP102", f"{path} cannot be read: {error.strerror}") from None
    return read_torch_blob(path, 0, length, unknown=unknown, allowed=allowed)


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
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError("CKP102", f"{path} cannot be read: {error.strerror}") from None
    try:
        if offset < 0 or length < 0 or offset + length > os.fstat(handle).st_size:
            raise CheckpointError(
                "CKP103", f"bytes [{offset}, {offset + length}) leave the file; is it truncated?"
            )

        def read(at: int, count: int) -> bytes:
            if at < 0 or count < 0 or at + count > length:
                raise CheckpointError("CKP103", f"{count} bytes at {at} leave the archive")
            part = os.pread(handle, count, offset + at)
            if len(part) != count:
                raise CheckpointError("CKP103", f"{count} bytes at {at} could not be read")
            return part

        if read(0, min(length, len(_LEGACY))) == _LEGACY:
            raise CheckpointError(
                "CKP109",
                "the file has the format of torch before 1.6; save it anew with torch.save",
            )
        return _read_archive(read, offset, length, unknown, allowed or {})
    except FlexckptError as error:
        raise CheckpointError(error.code, f"{path}: {error.message}") from error.__cause__
    except UnicodeDecodeError:
        raise CheckpointError("CKP103", f"{path}: the name of an entry is not text") from None
    finally:
        os.close(handle)


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


def _read_archive(read: Read, base: int, length: int, unknown: Unknown, allowed: Allowed) -> Any:
    entries = read_zip_directory(read, length)
    pickles = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise CheckpointError("CKP109", "the zip archive is not one that torch.save wrote")
    root = pickles[0].removesuffix("data.pkl")
    _check_byte_order(read, entries.get(root + "byteorder"))
    entry = entries[pickles[0]]
    if entry.size > _LARGEST_PICKLE:
        raise CheckpointError("CKP109", "a pickle of more than 2 GiB is not read")
    data = read(entry.position, entry.size)
    if entry.crc and crc32(data) != entry.crc:
        raise CheckpointError("CKP103", "the checksum of data.pkl does not match")
    makers = {**_MAKERS, **allowed}

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
    name = kind.name.rpartition(".")[2] if isinstance(kind, Build) else ""
    if tag != "storage" or name not in (*STORAGES, "TypedStorage") or type(count) is not int:
        raise CheckpointError("CKP105", "the pickle refers to something that is not a storage")
    dtype = STORAGES.get(name, torch.uint8)
    entry = entries.get(f"{root}data/{key}")
    if entry is None:
        raise CheckpointError("CKP103", f"the storage {key!r} is missing")
    if entry.size != count * dtype.itemsize:
        raise CheckpointError(
            "CKP103", f"the storage {key!r} must have {count} elements, but {entry.size} bytes"
        )
    return FileStorage(dtype, base + entry.position, entry.size)


def _tensor(
    storage: FileStorage, offset: int, shape: Any, strides: Any, dtype: torch.dtype | None = None
) -> FileTensor:
    shape, strides = size_of(shape), size_of(strides)
    if not isinstance(storage, FileStorage) or type(offset) is not int or offset < 0:
        raise TypeError("a tensor is made from a storage and an offset")
    if len(shape) != len(strides):
        raise CheckpointError("CKP103", f"a tensor has shape {shape} and strides {strides}")
    dtype = storage.dtype if dtype is None else dtype
    size, numel = dtype.itemsize, prod(shape)
    span = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if numel else 0
    if (offset + span) * size > storage.nbytes and numel:
        raise CheckpointError(
            "CKP103",
            f"a tensor of shape {shape}, strides {strides} at element {offset} leaves its "
            f"storage of {storage.nbytes} bytes",
        )
    if numel > max(storage.nbytes // size, _MOST_REPEATED):
        raise CheckpointError(
            "CKP103", f"a tensor of shape {shape} has a storage of {storage.nbytes} bytes only"
        )
    position = storage.position + offset * size if numel else storage.position
    return FileTensor(dtype, shape, strides, position, storage.position)


def _rebuild(
    storage: Any, offset: int, shape: Any, strides: Any, *rest: Any, dtype: Any = None
) -> Any:
    """What follows the strides: requires_grad, hooks, and marks as of a lazy conjugate."""
    marks = rest[2] if len(rest) > 2 else None
    if isinstance(marks, dict) and any(marks.get(mark) for mark in ("conj", "neg")):
        raise CheckpointError("CKP109", "a lazily conjugated or negated tensor is not supported")
    return _tensor(storage, offset, shape, strides, dtype)


def _rebuild_with_dtype(
    storage: Any,
    offset: int,
    shape: Any,
    strides: Any,
    grad: Any,
    hooks: Any,
    dtype: Any,
    *rest: Any,
) -> Any:
    if not isinstance(dtype, torch.dtype):
        raise TypeError("a tensor has no dtype")
    return _rebuild(storage, offset, shape, strides, grad, hooks, *rest, dtype=dtype)


def _rebuild_parameter(data: Any, *rest: Any) -> Any:
    return data


def _rebuild_from_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """A subclass, which is not data, or a tensor with attributes, which are dropped."""
    if not isinstance(function, Build) or not isinstance(kind, Build):
        raise TypeError("a tensor is rebuilt by something that is not a function")
    if tuple(kind.name.rsplit(".", 1)) not in _TENSOR_TYPES:
        return Opaque(kind.name)
    return function.make(*args)


def _refuse(*args: Any) -> Any:
    raise CheckpointError("CKP105", "the pickle builds a tensor or a storage by itself")


_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    **dict.fromkeys(_NAMES, _refuse),
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_with_dtype,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
}
