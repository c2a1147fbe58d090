# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The bytes of a file, out of gzip or zip, up to a limit."""

from __future__ import annotations

import gzip
import io
import os
import zipfile
import zlib
from typing import IO, Any, cast

from vmm.errors import FormatError

# Against files that grow without bound when they are decompressed.
MAX_BYTES = 4 << 30
MAX_RATIO = 300  # real snapshots and logs shrink to a tenth, seldom to a hundredth
_SMALL = 1 << 26
_PIECE = 1 << 22


def load(path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> bytes:
    """The content of a file, decompressed twice at most (``x.json.gz`` inside a zip).

    Raises FormatError if it is damaged, longer than `max_bytes` or a zip of several files; OSError.
    """
    try:
        with open(path, "rb") as file:
            data = _unwrap(file, max_bytes)
        return _unwrap(io.BytesIO(data), max_bytes) if _is_packed(data) else data
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise FormatError(f"the compressed data is damaged: {error}") from None
    except (NotImplementedError, RuntimeError) as error:
        raise FormatError(f"the zip file cannot be read: {error}") from None


def _is_packed(data: bytes) -> bool:
    return data.startswith((b"\x1f\x8b", b"PK\x03\x04"))


def _unwrap(file: IO[bytes], max_bytes: int) -> bytes:
    packed = file.seek(0, os.SEEK_END)
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    if _is_packed(start):
        max_bytes = min(max_bytes, max(_SMALL, MAX_RATIO * packed))
    if start.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=file, mode="rb") as unpacked:
            return _bounded(cast("IO[bytes]", unpacked), max_bytes)
    if start == b"PK\x03\x04":
        with zipfile.ZipFile(file) as archive:
            members = [name for name in archive.namelist() if not name.endswith("/")]
            if len(members) != 1:
                raise FormatError(f"the zip file holds {len(members)} files, not one")
            with archive.open(members[0]) as member:
                return _bounded(member, max_bytes)
    return _bounded(file, max_bytes)


def _bounded(file: IO[Any], max_bytes: int) -> bytes:
    pieces, total = [], 0
    while piece := file.read(_PIECE):
        pieces.append(piece)
        total += len(piece)
        if total > max_bytes:
            raise FormatError(f"the content is longer than {max_bytes} bytes")
    return b"".join(pieces)
