# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files in the format of ``torch.save`` before torch 1.6: pickles, then the storages one by one.

The pickles are: a magic number, the version, facts of the machine, the object, and the keys of the
storages in the order in which they follow, each as its number of elements and these. A tensor in
the object thus comes before the place of its storage is known, so the object is read twice.
"""

from mmap import ACCESS_READ, mmap
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.restricted_pickle import Unknown, run_pickle
from flexckpt.io.torch_tensors import TENSOR_MAKERS, Allowed, FileStorage, storage_dtype

MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_VERSION = 1001
_COUNT = 8  # bytes of the number of elements before a storage

Sizes = dict[str, tuple[Any, int]]  # dtype and number of elements by key of the storage


def read_legacy(handle: int, unknown: Unknown, allowed: Allowed) -> Any:
    """What the open file holds, with the places of tensors; see ``torch_file.read_torch_file``.

    Raises:
        CheckpointError: CKP103 if the file is damaged, CKP105 if it asks for what is not data,
            CKP109 for another version, byte order, or storages that are views of others.
    """
    with mmap(handle, 0, access=ACCESS_READ) as data:
        return _read(data, unknown, {**TENSOR_MAKERS, **allowed})


def _read(data: mmap, unknown: Unknown, makers: Allowed) -> Any:
    version, at = run_pickle(data, len(MAGIC), "the version")
    machine, at = run_pickle(data, at, "the facts of the machine")
    if version != _VERSION or not isinstance(machine, dict) or not machine.get("little_endian"):
        raise CheckpointError("CKP109", "the version or the byte order is not supported")
    sizes: Sizes = {}

    def unplaced(reference: Any) -> FileStorage:
        key, dtype, count = _reference(reference)
        if sizes.setdefault(key, (dtype, count)) != (dtype, count):
            raise CheckpointError("CKP103", f"the storage {key[:50]!r} has two sizes")
        return FileStorage(dtype, 0, count * dtype.itemsize)

    _, end = run_pickle(data, at, "the object", makers, unplaced, unknown=unknown)
    keys, first = run_pickle(data, end, "the keys of the storages")
    places = _places(data, keys, first, sizes)

    def placed(reference: Any) -> FileStorage:
        key, _, _ = _reference(reference)
        if key not in places:
            raise CheckpointError("CKP103", f"the storage {key[:50]!r} is missing")
        return places[key]

    return run_pickle(data, at, "the object", makers, placed, unknown=unknown).value


def _reference(reference: Any) -> tuple[str, Any, int]:
    """Key, dtype and number of elements of a persistent id."""
    tag, kind, key, _, count, view = reference
    if tag != "storage" or type(key) is not str or type(count) is not int or count < 0:
        raise CheckpointError("CKP105", "the pickle refers to something that is not a storage")
    if view is not None:
        raise CheckpointError("CKP109", "storages that are views of others are not supported")
    return key, storage_dtype(kind), count


def _places(data: mmap, keys: Any, at: int, sizes: Sizes) -> dict[str, FileStorage]:
    if not isinstance(keys, list) or not all(type(key) is str and key in sizes for key in keys):
        raise CheckpointError("CKP103", "the keys of the storages are damaged")
    places = {}
    for key in keys:
        dtype, count = sizes[key]
        end = at + _COUNT + count * dtype.itemsize
        if end > len(data):
            raise CheckpointError("CKP103", f"the storage {key[:50]!r} leaves the file")
        if int.from_bytes(data[at : at + _COUNT], "little", signed=True) != count:
            raise CheckpointError("CKP103", f"the storage {key[:50]!r} has another size")
        places[key] = FileStorage(dtype, at + _COUNT, count * dtype.itemsize)
        at = end
    return places
