# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tensors and storages in the pickles of torch, as the places where they lie."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, NamedTuple

import torch

from flexckpt.errors import CheckpointError
from flexckpt.io.numpy_scalars import NUMPY_MAKERS
from flexckpt.io.restricted_pickle import Build, Opaque, size_of

Allowed = Mapping[tuple[str, str], Callable[..., Any]]

# How many elements a tensor may have beyond those that its storage has (`expand` repeats them).
_MOST_REPEATED = 2**20

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


def storage_dtype(kind: Any) -> torch.dtype:
    """The dtype of a storage class, as it comes out of a pickle."""
    name = kind.name.rpartition(".")[2] if isinstance(kind, Build) else ""
    if name == "TypedStorage":
        return torch.uint8
    if name not in STORAGES:
        raise CheckpointError("CKP105", "the pickle refers to something that is not a storage")
    return STORAGES[name]


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


TENSOR_MAKERS: dict[tuple[str, str], Callable[..., Any]] = {
    **NUMPY_MAKERS,
    **dict.fromkeys(_NAMES, _refuse),
    ("torch._utils", "_rebuild_tensor"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild,
    ("torch._utils", "_rebuild_tensor_v3"): _rebuild_with_dtype,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _rebuild_parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _rebuild_from_type,
}
