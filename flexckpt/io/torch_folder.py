# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of files of ``torch.save``: one, or a Hugging Face folder of ``pytorch_model*.bin``.

A folder holds ``pytorch_model.bin``, or several files and ``pytorch_model.bin.index.json``, whose
``weight_map`` names the file of each tensor.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flexckpt.boxes import c_strides
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Reader, SourceIndex, Stored
from flexckpt.io.dcp_names import present_names
from flexckpt.io.inside import file_inside
from flexckpt.io.plain_data import json_data
from flexckpt.io.restricted_pickle import Plain
from flexckpt.io.safetensors_file import unique_names
from flexckpt.io.torch_file import FileTensor, read_torch_file

SINGLE = "pytorch_model.bin"
INDEX_SUFFIX = ".bin.index.json"
INDEX = f"pytorch_model{INDEX_SUFFIX}"
_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_STARTS = (b"PK\x03\x04", b"\x80\x02\x8a\nl\xfc")  # of the two formats that torch.save has had
_LARGEST_INDEX = 2**28
_SETTINGS = {("argparse", "Namespace"): Plain, ("types", "SimpleNamespace"): Plain}

Keys = tuple[str | int, ...]


class _Leaf(NamedTuple):
    """A tensor or a setting in the nested dicts of a file."""

    path: Keys
    value: Any


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a file of ``torch.save``, or a folder as Hugging Face writes it."""
    try:
        if path.is_dir():
            return (path / SINGLE).is_file() or (path / INDEX).is_file()
        if not path.is_file():
            return False
        if path.name.endswith(INDEX_SUFFIX):
            return True
        with path.open("rb") as file:
            return path.suffix in _SUFFIXES and file.read(8).startswith(_STARTS)
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """Read the structure of the files; no tensor is read.

    The keys of nested dicts are joined by dots, and the states of optimizers get the key of their
    parameter as in :func:`flexckpt.io.dcp_names.present_names`. What is not a tensor becomes
    ``extra`` if it is plain data. Where there is an index, it says which files belong to the
    checkpoint, and which of two tensors of one name counts.

    Args:
        path: a file of ``torch.save``, an index, or their folder.

    Raises:
        CheckpointError: CKP101 if there is no such file, CKP102 if one is missing, CKP103 if one is
            damaged or lacks a tensor, CKP105 if one asks for what is not data, CKP106 if the index
            leaves the folder, CKP109 for another format, CKP202 if files contradict one another.
    """
    folder, files, weight_map, extra = _files(path)
    tensors: dict[str, tuple[int, FileTensor]] = {}
    paths: dict[str, Keys] = {}
    for number, label in enumerate(files):
        found: set[str] = set()
        file = folder / label
        for leaf in _leaves(read_torch_file(file, allowed=_SETTINGS), ()):
            name = ".".join(map(str, leaf.path))
            if not isinstance(leaf.value, FileTensor):
                extra.update((name, value) for value in json_data(leaf.value, file))
                continue
            found.add(name)
            if weight_map.get(name, label) != label:
                continue
            if name in tensors:
                other = files[tensors[name][0]]
                what = "twice" if other == label else f"as does {other}, and no index decides"
                raise CheckpointError("CKP202", f"{file} holds {name[:200]!r} {what}")
            tensors[name] = number, leaf.value
            paths[name] = leaf.path
        missing = sorted(n for n, other in weight_map.items() if other == label and n not in found)
        if missing:
            what = f"lacks {missing[0][:200]!r}, which the index lists"
            raise CheckpointError("CKP103", f"{file} {what}")
    entries = {}
    for name, (key, state) in present_names(tensors, paths).items():
        number, tensor = tensors[name]
        dense = tensor.numel == 0 or tensor.strides == c_strides(tensor.shape)
        strides = None if dense else tensor.strides
        zero = (0,) * len(tensor.shape)
        stored = Stored(zero, tensor.shape, None, number, tensor.position, strides)
        entries[key, state] = Entry(key, state, tensor.shape, tensor.dtype, [stored])
    return SourceIndex("torch", path, [folder / label for label in files], entries, extra)


def _leaves(value: Any, path: Keys) -> Iterator[_Leaf]:
    """What the nested dicts hold; lists are walked if there is a tensor or a dict in them."""
    if isinstance(value, Plain) and not value.args:
        value = value.fields
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, (*path, key if type(key) is int else str(key)))
    elif type(value) in (list, tuple) and any(isinstance(p, dict | FileTensor) for p in value):
        for number, part in enumerate(value):
            yield from _leaves(part, (*path, number))
    else:
        yield _Leaf(path or ("tensor",), value)


class _Files(NamedTuple):
    """Names of files in a folder, which tensors are where, and what the index says besides."""

    folder: Path
    names: list[str]
    weight_map: dict[str, str]
    extra: dict[str, Any]


def _files(path: Path) -> _Files:
    if path.is_dir():
        if (path / INDEX).is_file():
            return _read_weight_map(path / INDEX)
        if not (path / SINGLE).is_file():
            raise CheckpointError("CKP101", f"{path} holds neither {SINGLE} nor {INDEX}")
        return _Files(path, [SINGLE], {}, {})
    if path.name.endswith(INDEX_SUFFIX):
        return _read_weight_map(path)
    return _Files(path.parent, [path.name], {}, {})


def _read_weight_map(path: Path) -> _Files:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_INDEX + 1)
    except OSError as error:
        raise CheckpointError("CKP102", f"{path} cannot be read: {error.strerror}") from None
    if len(text) > _LARGEST_INDEX:
        raise CheckpointError("CKP103", f"{path} has more than {_LARGEST_INDEX} bytes")
    try:
        fields = json.loads(text, object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise CheckpointError("CKP103", f"{path} is not JSON ({str(error)[:100]})") from None
    weight_map = fields.get("weight_map") if isinstance(fields, dict) else None
    if not isinstance(weight_map, dict) or not all(type(f) is str for f in weight_map.values()):
        raise CheckpointError("CKP103", f"{path}: weight_map must map names of tensors to files")
    names = sorted(set(weight_map.values()))
    for name in names:
        file_inside(path.parent, name, path.name)
    metadata = fields.get("metadata")
    extra = {"metadata": metadata} if isinstance(metadata, dict) else {}
    return _Files(path.parent, names, weight_map, extra)


READER = Reader("torch", recognizes, read_index)
