# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The bytes around the elements of a tensor that make an archive of ``torch.save`` of them.

They depend on shape and dtype only, so that the layout of a file is known before any element is,
and the elements go to the file as they lie in memory. As with
``torch.serialization.set_crc32_options(False)``, the elements have no checksum: computing it takes
longer than writing them.
"""

import io
import pickle
from collections import OrderedDict
from functools import lru_cache
from math import prod
from struct import pack
from typing import Any, NamedTuple
from zlib import crc32

import torch
from torch._utils import _rebuild_tensor_v2, _rebuild_tensor_v3

from flexckpt.io.torch_tensors import STORAGES

_ROOT = "archive/"
_ALIGN = 64
_FULL = 0xFFFFFFFF
_CLASSES = {
    dtype: getattr(torch, name) for name, dtype in STORAGES.items() if name != "UntypedStorage"
}


class Around(NamedTuple):
    """What comes before and after the elements."""

    head: bytes
    tail: bytes


@lru_cache(maxsize=4096)
def around(dtype: torch.dtype, shape: tuple[int, ...]) -> Around:
    """The archive of a tensor of this dtype and shape, without its elements, which are in C order.

    The elements lie at a multiple of 64 bytes from the start of the archive.
    """
    size = prod(shape) * dtype.itemsize
    head = bytearray()
    listed = []
    for name, data in (("data.pkl", _pickle_of(dtype, shape)), ("byteorder", b"little")):
        listed.append(_central(name, len(head), len(data), crc32(data)))
        head += _local(name, len(head), len(data), crc32(data)) + data
    listed.append(_central("data/0", len(head), size, 0))
    head += _local("data/0", len(head), size, 0, align=True)
    version = b"3\n"
    after = len(head) + size
    listed.append(_central("version", after, len(version), crc32(version)))
    tail = _local("version", after, len(version), crc32(version)) + version
    directory = b"".join(listed)
    tail += directory
    return Around(
        bytes(head), tail + _end(len(head) + size + len(tail), len(listed), len(directory))
    )


class _Storage:
    """Stands for the storage while the tensor is pickled."""


class _Pickler(pickle.Pickler):
    """Writes the persistent id of the one storage."""

    reference: tuple[Any, ...]

    def persistent_id(self, value: Any) -> Any:
        return self.reference if isinstance(value, _Storage) else None


class _Tensor:
    """Pickled as torch pickles a tensor."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    def __reduce__(self) -> tuple[Any, ...]:
        strides = torch.empty(self.shape, device="meta").stride()
        args: tuple[Any, ...] = (_Storage(), 0, self.shape, tuple(strides), False, OrderedDict())
        if self.dtype in _CLASSES:
            return _rebuild_tensor_v2, args
        return _rebuild_tensor_v3, (*args, self.dtype)


def _pickle_of(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    pickler = _Pickler(out, protocol=2)
    numel = prod(shape)
    if dtype in _CLASSES:
        pickler.reference = ("storage", _CLASSES[dtype], "0", "cpu", numel)
    else:
        pickler.reference = ("storage", torch.UntypedStorage, "0", "cpu", numel * dtype.itemsize)
    pickler.dump(_Tensor(dtype, shape))
    return out.getvalue()


def _local(name: str, at: int, size: int, crc: int, align: bool = False) -> bytes:
    """The header before an entry at byte ``at``; padded if the entry must be aligned."""
    path = (_ROOT + name).encode()
    extra = pack("<HHQQ", 1, 16, size, size) if size >= _FULL else b""
    if align:
        gap = -(at + 30 + len(path) + len(extra) + 4) % _ALIGN
        extra += pack("<HH", 0x4246, gap) + b"Z" * gap  # the field that torch pads with
    short = min(size, _FULL)
    return (
        pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, crc, short, short, len(path), len(extra))
        + path
        + extra
    )


def _central(name: str, at: int, size: int, crc: int) -> bytes:
    """The line of the directory for the entry whose header is at byte ``at``."""
    path = (_ROOT + name).encode()
    wide = pack("<QQ", size, size) if size >= _FULL else b""
    wide += pack("<Q", at) if at >= _FULL else b""
    extra = pack("<HH", 1, len(wide)) + wide if wide else b""
    short, position = min(size, _FULL), min(at, _FULL)
    lengths = pack("<5H", len(path), len(extra), 0, 0, 0)
    return (
        pack("<4s6H3I", b"PK\1\2", 45, 45, 0, 0, 0, 0, crc, short, short)
        + lengths
        + pack("<II", 0, position)
        + path
        + extra
    )


def _end(at: int, count: int, size: int) -> bytes:
    """What ends an archive whose directory of ``size`` bytes ends at byte ``at``."""
    start = at - size
    wide = b""
    if start >= _FULL:
        wide = pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
        wide += pack("<4sIQI", b"PK\6\7", 0, at, 1)
    return wide + pack("<4s4H2IH", b"PK\5\6", 0, 0, count, count, size, min(start, _FULL), 0)
