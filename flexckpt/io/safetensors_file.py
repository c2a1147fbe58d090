# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The header of a safetensors file, read with limits and built, without touching tensor data.

The safetensors library reads whole tensors; a reshard needs the byte positions. Format:
https://github.com/huggingface/safetensors (8 bytes length, JSON, data without holes).
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flexckpt.errors import CheckpointError

MAX_HEADER = 100_000_000  # the limit of the reference implementation
METADATA = "__metadata__"
MAX_AXES = 64  # of a torch tensor

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class HeaderEntry(NamedTuple):
    """A tensor of a file: bytes ``[start, stop)`` of the whole file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(slots=True)
class Header:
    tensors: dict[str, HeaderEntry]
    metadata: dict[str, str]


def read_header(path: Path, begin: int = 0) -> Header:
    """Read and check the header of a safetensors file.

    Args:
        path: of the file.
        begin: byte where the format begins, if something else comes before it.

    Raises:
        CheckpointError: CKP102 if there is no such file, CKP103 if the header is not one, or does
            not describe the file without holes and overlaps, CKP109 for an unknown dtype.
    """
    try:
        if not path.exists():
            raise CheckpointError("CKP102", f"{path} does not exist")
        if not path.is_file():  # opening a pipe would wait for a writer
            raise CheckpointError("CKP103", f"{path} is not a file")
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(begin)
            length = int.from_bytes(file.read(8), "little")
            if size - begin < 8 or length > min(size - begin - 8, MAX_HEADER):
                raise _damaged(path, f"its header claims {length} bytes, the file has {size}")
            text = file.read(length)
    except OSError as error:
        raise CheckpointError("CKP103", f"{path} cannot be read: {error.strerror}") from None
    try:
        fields = json.loads(text.decode(), object_pairs_hook=unique_names)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({_short(error)})") from None
    if not isinstance(fields, dict):
        raise _damaged(path, "its header is not a JSON object")
    metadata = fields.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _damaged(path, f"its {METADATA} does not map strings to strings")
    data = begin + 8 + length
    tensors = {name: _entry(path, name, value, data) for name, value in fields.items()}
    at = data
    for name, entry in sorted(tensors.items(), key=lambda item: item[1].start):
        if entry.start != at and entry.stop > entry.start:
            raise _damaged(
                path, f"tensor {_short(name)} starts at byte {entry.start - data}, not {at - data}"
            )
        at = max(at, entry.stop)
    if at != size:
        raise _damaged(path, f"its tensors end at byte {at}, the file at {size}")
    return Header(tensors, metadata)


def _entry(path: Path, name: str, value: Any, data: int) -> HeaderEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(path, f"tensor {_short(name)} must have dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise CheckpointError(
            "CKP109", f"{path}: tensor {_short(name)} has the unknown dtype {_short(dtype)}"
        )
    if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
        what = f"has shape {_short(shape)} and data_offsets {_short(offsets)}"
        raise _damaged(path, f"tensor {_short(name)} {what}")
    if len(shape) > MAX_AXES:
        raise _damaged(path, f"tensor {_short(name)} has {len(shape)} axes")
    start, stop = offsets
    torch_dtype = DTYPES[dtype]
    if stop - start != prod(shape) * torch_dtype.itemsize:
        what = f"of shape {shape} and dtype {dtype} has {stop - start} bytes"
        raise _damaged(path, f"tensor {_short(name)} {what}")
    return HeaderEntry(torch_dtype, tuple(shape), data + start, data + stop)


def _sizes(value: Any) -> bool:
    if not isinstance(value, list) or any(kind is not int for kind in map(type, value)):
        return False
    return not value or (min(value) >= 0 and max(value) < 2**63)


def _short(value: Any) -> str:
    """A value of a file as part of a message, whatever its length."""
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 200 else text[:200] + "..."


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A hook for json.loads that refuses objects with a repeated name."""
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a name occurs twice")
    return out


def _damaged(path: Path, what: str) -> CheckpointError:
    return CheckpointError("CKP103", f"{path} is not a safetensors file: {what}")


def build_header(
    tensors: Iterable[tuple[str, torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, HeaderEntry]]:
    """The first bytes of a file, and where its tensors then lie.

    Wide dtypes come first, so that every tensor is aligned to its own size.

    Raises:
        CheckpointError: CKP109 for a dtype or a name that the format does not have.
    """
    fields: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    at = 0
    for name, dtype, shape in sorted(tensors, key=lambda t: -t[1].itemsize):
        if dtype not in NAMES:
            raise CheckpointError("CKP109", f"{name!r}: safetensors files have no dtype {dtype}")
        if name == METADATA or not _encodes(name):
            raise CheckpointError("CKP109", f"{name!r} cannot name a tensor of a safetensors file")
        stop = at + prod(shape) * dtype.itemsize
        fields[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [at, stop]}
        at = stop
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % 64)  # the data starts aligned to a cache line
    data = 8 + len(text)
    entries = {
        name: HeaderEntry(
            DTYPES[f["dtype"]],
            tuple(f["shape"]),
            data + f["data_offsets"][0],
            data + f["data_offsets"][1],
        )
        for name, f in fields.items()
        if name != METADATA
    }
    return len(text).to_bytes(8, "little") + text, entries


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
