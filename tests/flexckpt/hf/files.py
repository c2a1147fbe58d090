# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Safetensors files for the tests, right and wrong, and reading what an index points at."""

import json
from pathlib import Path

import torch

from flexckpt.index import SourceIndex


def raw_file(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """A file with any header: bytes as they are, everything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def f32(shape: list[int], start: int, stop: int) -> dict:
    return {"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}


def write_weight_map(folder: Path, weight_map: object, name: str = "model") -> Path:
    path = folder / f"{name}.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def stored_tensor(index: SourceIndex, key: str, state: str = "weight") -> torch.Tensor:
    """A tensor read at the positions that the index gives, with plain file operations."""
    entry = index.entries[key, state]
    out = torch.zeros(entry.shape, dtype=entry.dtype)
    for stored in entry.shards:
        with index.files[stored.file].open("rb") as file:
            file.seek(stored.position)
            n = torch.Size(stored.shape).numel() * entry.dtype.itemsize
            data = bytearray(file.read(n))
        assert len(data) == n
        part = torch.empty(stored.shape, dtype=entry.dtype)
        if n:
            part = torch.frombuffer(data, dtype=torch.uint8).view(entry.dtype).reshape(stored.shape)
        where = tuple(slice(a, a + m) for a, m in zip(stored.offset, stored.shape, strict=True))
        out[where] = part
    return out
