# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which files make a DeepSpeed checkpoint, and their contents as plain data."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flexckpt.errors import CheckpointError
from flexckpt.io.restricted_pickle import Plain
from flexckpt.io.torch_file import FileTensor, read_torch_file

_MODEL = re.compile(r"(?:zero_pp_rank_(\d{1,9})_)?mp_rank_(\d{1,9})_model_states\.pt")
_OPTIMIZER = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_(\d{1,9})_mp_rank_(\d{1,9})_optim_states\.pt"
)
_EXPERT = re.compile(r"(?:layer_\d+_)?expert_\d+_mp_rank_\d+_model_states\.pt")
_LONGEST_TAG = 1000

# Objects of DeepSpeed whose fields are of use.
_ALLOWED = {
    ("deepspeed.runtime.fp16.loss_scaler", "LossScaler"): Plain,
    ("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler"): Plain,
}

Rank = tuple[int, int]  # data-parallel, tensor/pipeline-parallel ("mp_rank")


class Files(NamedTuple):
    """The files of a tag folder.

    Attributes:
        folder: that holds them.
        model: model states of ZeRO-1/2 and without ZeRO, by mp rank.
        model_parts: model states of ZeRO-3, by rank.
        optimizer: partitions of the optimizer, by rank.
        experts: whether there are files of experts.
    """

    folder: Path
    model: dict[int, Path]
    model_parts: dict[Rank, Path]
    optimizer: dict[Rank, Path]
    experts: bool


def tag_folder(path: Path, marker: str) -> Path:
    """The folder that the file ``marker`` ("latest") in ``path`` names; ``path`` without one.

    Raises:
        CheckpointError: CKP103 if the marker is no name, CKP106 if it leads out of ``path``, CKP102
            if there is no such folder.
    """
    file = path / marker
    if not file.is_file():
        return path
    with file.open("rb") as handle:
        raw = handle.read(_LONGEST_TAG + 1)
    try:
        tag = raw.decode().strip()
    except UnicodeDecodeError:
        tag = ""
    if not tag or len(raw) > _LONGEST_TAG or not tag.isprintable():
        raise CheckpointError("CKP103", f"{file} must hold the name of a folder")
    if Path(tag).is_absolute() or ".." in Path(tag).parts:
        raise CheckpointError("CKP106", f"{file} names {tag!r}, which is outside of {path}")
    if not (path / tag).is_dir():
        raise CheckpointError("CKP102", f"{file} names {tag!r}, but there is no such folder")
    return path / tag


def find_files(folder: Path) -> Files:
    """The files of a tag folder by rank.

    Raises:
        CheckpointError: CKP202 if two files claim one rank.
    """
    found = Files(folder, {}, {}, {}, any(_EXPERT.fullmatch(p.name) for p in folder.iterdir()))
    for file in sorted(folder.iterdir()):
        if match := _MODEL.fullmatch(file.name):
            if match[1] is None:
                found.model[int(match[2])] = file
            else:
                found.model_parts[int(match[1]), int(match[2])] = file
        elif match := _OPTIMIZER.fullmatch(file.name):
            rank = int(match[1]), int(match[2])
            if rank in found.optimizer:
                raise CheckpointError(
                    "CKP202",
                    f"{folder}: {found.optimizer[rank].name} and {file.name} are of one rank",
                )
            found.optimizer[rank] = file
    return found


def holds_model_states(folder: Path) -> bool:
    """Whether a folder has files as DeepSpeed names them; never raises."""
    try:
        return any(_MODEL.fullmatch(file.name) for file in folder.iterdir())
    except OSError:
        return False


def read_states(path: Path) -> dict[str, Any]:
    """The dict in a file of DeepSpeed, tensors as ``FileTensor``, objects of other classes inert.

    Raises:
        CheckpointError: CKP103 if it is none, or the file is damaged.
    """
    states = read_torch_file(path, unknown="opaque", allowed=_ALLOWED)
    if not isinstance(states, dict):
        raise CheckpointError("CKP103", f"{path} holds a {type(states).__name__}, not a dict")
    return states


def field(states: Any, path: Path, *keys: str | int, kind: type = dict) -> Any:
    """``states[keys[0]][keys[1]]...``, which must be a ``kind``.

    Raises:
        CheckpointError: CKP103 if it is not there or something else.
    """
    value = states
    for key in keys:
        inside = isinstance(value, dict) and key in value
        listed = isinstance(value, list) and type(key) is int and key < len(value)
        value = value[key] if inside or listed else None
    if not isinstance(value, kind):
        where = ".".join(map(str, keys))
        raise CheckpointError("CKP103", f"{path}: {where} must be a {kind.__name__}")
    return value


def read_shapes(groups: Any, path: Path) -> list[dict[str, tuple[int, ...]]]:
    """``param_shapes``: shapes by name, group by group.

    Raises:
        CheckpointError: CKP103 if it is malformed, CKP202 if a name is in two groups.
    """
    groups = [groups] if isinstance(groups, dict) else groups
    seen: set[str] = set()
    if not isinstance(groups, list) or not all(isinstance(g, dict) for g in groups):
        raise CheckpointError("CKP103", f"{path}: param_shapes must be a list of dicts")
    for name, shape in (item for group in groups for item in group.items()):
        sizes = isinstance(shape, tuple | list) and all(type(n) is int and n >= 0 for n in shape)
        if not isinstance(name, str) or not sizes:
            raise CheckpointError("CKP103", f"{path}: param_shapes has {name!r}: {shape!r}")
        if name in seen:
            raise CheckpointError("CKP202", f"{path}: param_shapes has {name!r} twice")
        seen.add(name)
    return [{name: tuple(shape) for name, shape in group.items()} for group in groups]


def tensors(states: Any) -> Iterator[tuple[str, FileTensor]]:
    """The tensors of a state dict by name; none if it is None (a pipeline keeps them elsewhere)."""
    for name, value in (states or {}).items() if isinstance(states, dict) else ():
        if isinstance(name, str) and isinstance(value, FileTensor):
            yield name, value


def plain(value: Any) -> Any:
    """What of a value is JSON: numbers, text, lists, dicts. Tensors and objects are left out."""
    if isinstance(value, list | tuple):
        return [plain(part) for part in value if is_plain(part)]
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items() if is_plain(part)}
    return value if is_plain(value) else None


def is_plain(value: Any) -> bool:
    kinds = (bool, int, float, str, list, tuple, dict)
    return value is None or (isinstance(value, kinds) and not isinstance(value, FileTensor))
