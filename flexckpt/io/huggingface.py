# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of safetensors: one file, or a folder as Hugging Face writes it, with or without an index.

A folder holds ``model.safetensors``, or several files and ``model.safetensors.index.json``, whose
``weight_map`` names the file of each tensor: https://huggingface.co/docs/transformers/big_models.
torch's distributed checkpoint can write files with parts of tensors; their metadata say so.
"""

import json
import re
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from flexckpt.boxes import map_add
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Reader, SourceIndex, Stored
from flexckpt.io.safetensors_file import MAX_HEADER, Header, read_header, unique_names
from flexckpt.states import split_known

INDEX_SUFFIX = ".safetensors.index.json"
INDEX_NAME = f"model{INDEX_SUFFIX}"
SINGLE_NAME = "model.safetensors"
_OF = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.safetensors")
_LONGEST = 512  # characters of a name in an index
_PARTS = "DCP_SHARDING_INFO"  # metadata: name -> {"saved_offsets": [...]}


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a safetensors file, an index of some, or a folder that holds either."""
    try:
        if path.is_dir():
            return any(path.glob("*.safetensors")) or any(path.glob(f"*{INDEX_SUFFIX}"))
        return path.is_file() and path.name.endswith((".safetensors", INDEX_SUFFIX))
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """Read the headers of the files of a checkpoint. Nothing is ever written beside them.

    Where there is an index, it says which files belong to the checkpoint, and which of two tensors
    of one name counts; a tensor of these files that it does not list belongs to the checkpoint too.

    Args:
        path: a ``.safetensors`` file, a ``.safetensors.index.json`` file, or their folder.

    Raises:
        CheckpointError: CKP101 if there are no such files, CKP102 if one is missing, CKP103 if one
            is damaged or lacks a tensor, CKP106 if the index leaves the folder, CKP109 for an
            unknown dtype, CKP202 if files contradict one another.
    """
    names, weight_map, metadata = _files(path)
    folder = path if path.is_dir() else path.parent
    files = [folder / name for name in names]
    headers = [read_header(file) for file in files]
    _check_listed(path, dict(zip(names, headers, strict=True)), weight_map)
    known = {tensor for header in headers for tensor in header.tensors}
    entries: dict[tuple[str, str], Entry] = {}
    for at, (name, header) in enumerate(zip(names, headers, strict=True)):
        offsets = _saved_offsets(files[at], header)
        for tensor, (dtype, shape, start, _) in header.tensors.items():
            if weight_map.get(tensor, name) != name and not offsets:
                continue
            key = split_known(tensor, known)
            offset = offsets[tensor] if offsets else (0,) * len(shape)
            stored = Stored(offset, shape, None, at, start)
            entry = entries.get(key)
            if entry is None:
                entry = entries[key] = Entry(*key, shape, dtype, [stored])
            elif offsets:
                entry.shards.append(stored)
            else:
                what = f"{tensor!r} is in {names[entry.shards[0].file]} and in {name}"
                raise CheckpointError("CKP202", f"{path}: {what}, and no index decides")
            if offsets:
                _grow(path, tensor, entry, stored, dtype)
    if not weight_map and len(headers) == 1:
        metadata = dict(headers[0].metadata)
    return SourceIndex(
        "safetensors",
        path,
        files,
        entries,
        extra={"metadata": metadata},
        aliases=_aliases(headers, entries),
    )


def _grow(path: Path, tensor: str, entry: Entry, part: Stored, dtype: torch.dtype) -> None:
    """Let the tensor reach as far as a part of it."""
    if entry.dtype != dtype or len(entry.shape) != len(part.shape):
        what = f"the parts of {tensor!r} contradict one another"
        raise CheckpointError("CKP202", f"{path}: {what}")
    ends = map_add(part.offset, part.shape)
    entry.shape = tuple(map(max, entry.shape, ends))


def _files(path: Path) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    """Names of the files, and the weight map and the metadata of the index, empty without one."""
    if not path.is_dir():
        if path.name.endswith(INDEX_SUFFIX):
            return _read_weight_map(path)
        return [path.name], {}, {}
    found = sorted(file.name for file in path.glob("*.safetensors"))
    indexes = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if path / INDEX_NAME in indexes:
        indexes = [path / INDEX_NAME]
    if len(indexes) > 1:
        several = ", ".join(index.name for index in indexes)
        raise CheckpointError("CKP202", f"{path} holds several checkpoints; name one of {several}")
    if indexes:
        names, weight_map, metadata = _read_weight_map(indexes[0])
        if SINGLE_NAME in found and SINGLE_NAME not in names:
            what = f"{SINGLE_NAME} and {indexes[0].name}, which does not list it; name one of them"
            raise CheckpointError("CKP202", f"{path} holds {what}")
        return names, weight_map, metadata
    if SINGLE_NAME in found:  # others beside it are variants
        return [SINGLE_NAME], {}, {}
    if not found:
        raise CheckpointError("CKP101", f"{path} holds no safetensors file")
    for name in found:
        if match := _OF.fullmatch(name):
            stem, count = match[1], match[3]
            wanted = [f"{stem}-{k + 1:05}-of-{count}.safetensors" for k in range(int(count))]
            if missing := sorted({*wanted} - {*found}):
                raise CheckpointError("CKP102", f"{path}: {missing[0]} of {count} files is missing")
    return found, {}, {}


def _read_weight_map(path: Path) -> tuple[list[str], dict[str, str], dict[str, Any]]:
    fields = _read_json(path)
    weight_map = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(f, str) for f in weight_map.values()):
        raise CheckpointError("CKP103", f"{path}: weight_map must map names of tensors to files")
    names = sorted(set(weight_map.values()))
    for name in names:
        _check_inside(path, name)
    metadata = fields.get("metadata")
    return names, weight_map, metadata if isinstance(metadata, dict) else {}


def _check_inside(path: Path, name: str) -> None:
    """Raise unless ``name`` is a plain relative path on every system.

    Links are followed: caches of downloaded models are made of them.
    """
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    leaves = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
    if leaves or "\0" in name or not posix.name or len(name) > _LONGEST:
        raise CheckpointError(
            "CKP106", f"{path} names {name[:200]!r}, which no file in its folder can be"
        )


def _read_json(path: Path) -> Any:
    try:
        if not path.is_file():
            raise CheckpointError("CKP102", f"{path} is not a file")
        with path.open("rb") as file:
            text = file.read(MAX_HEADER + 1)
    except OSError as error:
        raise CheckpointError("CKP103", f"{path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_HEADER:
        raise CheckpointError("CKP103", f"{path} is longer than {MAX_HEADER} bytes")
    try:
        return json.loads(text.decode(), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("CKP103", f"{path} is not JSON: {str(error)[:200]}") from None


def _check_listed(path: Path, headers: dict[str, Header], weight_map: dict[str, str]) -> None:
    for tensor, name in weight_map.items():
        if tensor not in headers[name].tensors:
            what = f"the index finds {tensor!r} in {name}, which lacks it"
            raise CheckpointError("CKP103", f"{path}: {what}")


def _saved_offsets(path: Path, header: Header) -> dict[str, tuple[int, ...]]:
    """Where the parts of tensors lie that torch's distributed checkpoint has put into a file."""
    text = header.metadata.get(_PARTS)
    if text is None:
        return {}
    try:
        parts = json.loads(text)
        offsets = {name: tuple(part["saved_offsets"]) for name, part in parts.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise CheckpointError("CKP103", f"{path}: its metadata {_PARTS} is malformed") from None
    for name, entry in header.tensors.items():
        offset = offsets.get(name, ())
        whole = all(type(n) is int and 0 <= n < 2**62 for n in offset)
        if len(offset) != len(entry.shape) or not whole:
            raise CheckpointError("CKP103", f"{path}: {_PARTS} does not say where {name!r} lies")
    return offsets


def _aliases(headers: list[Header], entries: dict[tuple[str, str], Entry]) -> dict[str, str]:
    """Names that a file's metadata calls equal to a tensor, as safetensors' save_model does."""
    keys = {key for key, _ in entries}
    return {
        name: key
        for header in headers
        for name, key in header.metadata.items()
        if key in keys and name not in keys
    }


READER = Reader("safetensors", recognizes, read_index)
