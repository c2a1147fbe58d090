# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The ``.metadata`` of torch's distributed checkpoints, as light records.

It is a pickle of the classes of ``torch.distributed.checkpoint.metadata``; here their fields are
read as data, and none of these classes is used.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.restricted_pickle import Plain, load_plain
from flexckpt.quiet_gc import quiet_gc

METADATA = ".metadata"
RANK_METADATA = "__*.metadata"  # one per rank, where ranks saved without telling one another

_CLASSES: dict[str, tuple[str, ...]] = {
    "torch.distributed.checkpoint.metadata": (
        "Metadata",
        "MetadataIndex",
        "TensorStorageMetadata",
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "TensorProperties",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    ),
    # Where torch before 2.2 had them.
    "torch.distributed._shard.sharded_tensor.metadata": ("TensorProperties", "MEM_FORMAT_ENCODING"),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    # Megatron keeps the plans of the ranks beside the metadata.
    "torch.distributed.checkpoint.planner": (
        "SavePlan",
        "WriteItem",
        "WriteItemType",
        "TensorWriteData",
        "BytesIOWriteData",
    ),
    "megatron.core.dist_checkpointing.strategies.torch": ("MCoreMetadata", "MCoreSavePlan"),
    "pathlib": ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
    "pathlib._local": ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"),
}
_ALLOWED = {(module, name): Plain for module, names in _CLASSES.items() for name in names}


class Blob(NamedTuple):
    """Bytes ``[start, start + length)`` of a file, whose path is relative to the folder."""

    file: str
    start: int
    length: int


class Chunk(NamedTuple):
    """A box of a tensor and where it is stored."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    blob: Blob


class StoredTensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: list[Chunk]


class DcpMetadata(NamedTuple):
    """What ``.metadata`` says.

    Attributes:
        tensors: by their names in the flattened state dict.
        objects: everything else: a ``torch.save`` archive each.
        paths: the keys of the nested state dict that lead to a name, where it was flattened.
    """

    tensors: dict[str, StoredTensor]
    objects: dict[str, Blob]
    paths: dict[str, tuple[str | int, ...]]


def metadata_files(folder: Path) -> list[Path]:
    """The metadata files of a folder: the common one, or else those of the ranks."""
    common = folder / METADATA
    if common.is_file():
        return [common]
    return sorted(file for file in folder.glob(RANK_METADATA) if file.is_file())


def read_metadata(files: Iterable[Path]) -> DcpMetadata:
    """The metadata in ``files``, merged.

    Raises:
        CheckpointError: CKP102 if a file cannot be read, CKP103 if it is damaged, CKP105 if it asks
            for what is not data, CKP109 for a tensor that was transformed when it was written,
            CKP202 if the files of ranks contradict one another.
    """
    merged = DcpMetadata({}, {}, {})
    for file in files:
        try:
            with file.open("rb") as stream:
                root = load_plain(stream, _ALLOWED)
        except OSError as error:
            raise CheckpointError("CKP102", f"{file} cannot be read: {error.strerror}") from None
        try:
            with quiet_gc():
                _add(merged, root)
        except FlexckptError as error:
            raise CheckpointError(error.code, f"{file}: {error.message}") from None
        except Exception as error:  # fields that are missing or of another type
            raise CheckpointError(
                "CKP103", f"{file}: the metadata are damaged ({type(error).__name__}: {error})"
            ) from error
    return merged


def _add(merged: DcpMetadata, root: Any) -> None:
    fields = root.fields
    places = _places(fields["storage_data"])
    for name, item in fields["state_dict_metadata"].items():
        if type(name) is not str:
            raise TypeError("the name of a tensor is not text")
        if "size" not in item.fields:
            merged.objects[name] = _place(places, name, None)
            continue
        tensor = _tensor(name, item.fields, places)
        known = merged.tensors.setdefault(name, tensor)
        if known is not tensor:
            if known.shape != tensor.shape or known.dtype != tensor.dtype:
                raise CheckpointError("CKP202", f"the ranks disagree on shape or dtype of {name!r}")
            known.chunks.extend(tensor.chunks)
    for name, path in (fields.get("planner_data") or {}).items():
        if type(path) is tuple and path and all(type(part) in (str, int) for part in path):
            merged.paths[name] = path


Places = dict[tuple[str, tuple[int, ...] | None], Blob]


def _places(storage_data: dict[Plain, Plain]) -> Places:
    places: Places = {}
    for index, info in storage_data.items():
        name, offset = index.fields["fqn"], index.fields.get("offset")
        file, start, length = (info.fields[key] for key in ("relative_path", "offset", "length"))
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise TypeError("a position is not a number")
        if info.fields.get("transform_descriptors"):
            raise CheckpointError(
                "CKP109", f"{name!r} was compressed or changed when it was written"
            )
        places[name, offset] = Blob(file, start, length)
    return places


def _place(places: Places, name: str, offset: tuple[int, ...] | None) -> Blob:
    blob = places.get((name, offset))
    if blob is None:
        where = "" if offset is None else f" the part at {offset} of"
        raise CheckpointError("CKP103", f"the metadata do not tell where{where} {name!r} is stored")
    return blob


def _tensor(name: str, fields: dict[str, Any], places: Places) -> StoredTensor:
    shape = _numbers(fields["size"])
    properties = fields["properties"].fields
    dtype = properties["state"][0] if "state" in properties else properties["dtype"]
    if not isinstance(dtype, torch.dtype):
        raise TypeError("a dtype is missing")
    chunks = []
    for chunk in fields["chunks"]:
        offset, sizes = _numbers(chunk.fields["offsets"]), _numbers(chunk.fields["sizes"])
        if not len(shape) == len(offset) == len(sizes) or any(
            a + n > whole for a, n, whole in zip(offset, sizes, shape, strict=True)
        ):
            raise CheckpointError(
                "CKP103", f"the part of {name!r} at {offset} of shape {sizes} leaves {shape}"
            )
        chunks.append(Chunk(offset, sizes, _place(places, name, offset)))
    return StoredTensor(shape, dtype, chunks)


def _numbers(value: Any) -> tuple[int, ...]:
    if type(value) is tuple and all(type(n) is int and 0 <= n < 2**63 for n in value):
        return value
    raise TypeError("a size is not a tuple of numbers")
