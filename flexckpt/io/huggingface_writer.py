# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which safetensors files a Hugging Face folder gets, planned from names, dtypes and shapes alone.

The files are created at their full size, so that several writers can fill them side by side.
"""

import json
import os
import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.io.huggingface import INDEX_NAME, SINGLE_NAME
from flexckpt.io.safetensors_file import HeaderEntry, build_header
from flexckpt.model import TensorSpec

_UNITS = {"": 1, "B": 1}
_UNITS |= {f"{letter}B": 1000 ** (k + 1) for k, letter in enumerate("KMGT")}
_UNITS |= {f"{letter}IB": 1024 ** (k + 1) for k, letter in enumerate("KMGT")}
_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,18})?) ?([A-Z]*)")


class OutputFile(NamedTuple):
    """A file to be written.

    Attributes:
        name: of the file in its folder.
        header: its first bytes.
        tensors: where in the whole file the bytes of each tensor go, in C order.
        size: of the whole file in bytes.
    """

    name: str
    header: bytes
    tensors: dict[str, HeaderEntry]
    size: int


class OutputPlan(NamedTuple):
    """The files of a folder.

    Attributes:
        files: the safetensors files.
        index_text: of ``model.safetensors.index.json``; None where one file holds everything.
    """

    files: list[OutputFile]
    index_text: str | None


def parse_size(size: int | str) -> int:
    """Bytes of a size like ``5GB`` (10^9), ``2GiB`` (2^30) or ``4096``.

    Raises:
        FlexckptError: ARG101 if it is no such size, or zero.
    """
    bytes_ = 0
    if isinstance(size, int):
        bytes_ = size
    elif match := _SIZE.fullmatch(size.strip().upper()):
        bytes_ = int(float(match[1]) * _UNITS.get(match[2], 0))
    if bytes_ <= 0:
        raise FlexckptError("ARG101", f"shard_size must be like '5GB' or 4096, not {size!r}")
    return bytes_


def plan_files(
    specs: Mapping[str, TensorSpec],
    shard_size: int | str = "5GB",
    aliases: Mapping[str, str] | None = None,
) -> OutputPlan:
    """Cut tensors into files, in the order of ``specs``.

    A file takes tensors while they fit into ``shard_size``; a larger one gets a file of its own.

    Args:
        specs: the tensors by their names in the files; their shards do not matter.
        shard_size: of the data of a file at most, in bytes or like ``"5GB"``.
        aliases: further names of tensors (tied weights). They are mentioned, not written again.

    Raises:
        CheckpointError: CKP109 for a dtype or name that safetensors does not have, or no dtype.
        FlexckptError: ARG101 for a bad ``shard_size``.
    """
    limit = parse_size(shard_size)
    aliases = aliases or {}
    groups: list[list[tuple[str, torch.dtype, tuple[int, ...]]]] = [[]]
    total = filled = 0
    for name, spec in specs.items():
        if name in aliases:
            continue
        if spec.dtype is None:
            raise CheckpointError("CKP109", f"{name!r} has no dtype, which a file must state")
        n = prod(spec.shape) * spec.dtype.itemsize
        if groups[-1] and filled + n > limit:
            groups.append([])
            filled = 0
        groups[-1].append((name, spec.dtype, tuple(spec.shape)))
        filled += n
        total += n
    files = []
    for k, group in enumerate(groups):
        inside = {name for name, _, _ in group}
        tied = {alias: name for alias, name in aliases.items() if name in inside}
        header, tensors = build_header(group, {**tied, "format": "pt"})
        name = SINGLE_NAME
        if len(groups) > 1:
            name = f"model-{k + 1:05}-of-{len(groups):05}.safetensors"
        size = max([len(header), *(entry.stop for entry in tensors.values())])
        files.append(OutputFile(name, header, tensors, size))
    return OutputPlan(files, _index_text(files, total) if len(files) > 1 else None)


def _index_text(files: list[OutputFile], total: int) -> str:
    weight_map = {name: file.name for file in files for name in file.tensors}
    fields = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(fields, indent=2) + "\n"


def create_files(folder: Path, plan: OutputPlan) -> None:
    """Write the headers and the index, and give every file its full size. The data are still zeros.

    Raises:
        CheckpointError: CKP108 if the folder cannot be written.
    """
    try:
        for file in plan.files:
            with (folder / file.name).open("xb") as out:
                out.write(file.header)
                out.truncate(file.size)
                _sync(out)
        if plan.index_text is not None:
            with (folder / INDEX_NAME).open("xb") as out:
                out.write(plan.index_text.encode())
                _sync(out)
    except OSError as error:
        raise CheckpointError("CKP108", f"{folder} cannot be written: {error.strerror}") from None


def _sync(file: BinaryIO) -> None:
    """Have it written to the disk: nobody may write to this file again before the commit."""
    file.flush()
    os.fsync(file.fileno())
