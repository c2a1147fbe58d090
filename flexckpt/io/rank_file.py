# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writing tensors into files at known positions, with checksums, and onto the disk."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch
import xxhash

from flexckpt.errors import CheckpointError
from flexckpt.io.ranged import bytes_of
from flexckpt.io.write_out import begin_write_out

CHUNK = 1 << 20  # bytes hashed and written at a time, while they are in the cache
WRITE_OUT = 16 << 20  # bytes side by side after which the disk is asked to begin
STAGE = 8 << 20  # bytes of a strided tensor made dense at a time


class FileWriter:
    """One file that is filled at known positions.

    Args:
        path: of the file, which must not exist unless ``create`` is off.
        size: of the whole file in bytes.
        create: make the file; else it exists at its full size.

    Raises:
        CheckpointError: CKP108 if it cannot be made, for example for lack of room.
    """

    def __init__(self, path: Path, size: int, *, create: bool = True) -> None:
        self.path = path
        self.fd = -1
        self._fresh = 0, 0  # bytes that were written and not yet passed to the disk
        flags = os.O_WRONLY | os.O_CLOEXEC | (os.O_CREAT | os.O_EXCL if create else 0)
        try:
            self.fd = os.open(path, flags, 0o644)
            if create and size:
                _reserve(self.fd, size)
        except OSError as error:
            self.abandon()
            raise _failed(path, error) from None

    def write(self, position: int, data: bytes | memoryview) -> None:
        """Write bytes at a position."""
        view = memoryview(data)
        try:
            start = position
            while len(view):
                done = os.pwrite(self.fd, view, position)
                position += done
                view = view[done:]
        except OSError as error:
            raise _failed(self.path, error) from None
        first = self._fresh[0] if self._fresh[1] == start else start
        self._fresh = first, position
        if position - first >= WRITE_OUT:
            begin_write_out(self.fd, first, position - first)
            self._fresh = position, position

    def write_tensor(
        self, position: int, tensor: torch.Tensor, *, checksum: bool = True
    ) -> str | None:
        """Write the elements of a tensor in C order at a position.

        Returns:
            The XXH3-64 checksum of the bytes in hexadecimal, or None if none is wanted.
        """
        digest = xxhash.xxh3_64() if checksum else None
        for dense in _dense_parts(tensor.detach().resolve_conj().resolve_neg()):
            size = dense.dtype.itemsize
            start = int(dense.storage_offset()) * size
            data = bytes_of(dense)[start : start + dense.numel() * size]
            for at in range(0, len(data), CHUNK):
                chunk = data[at : at + CHUNK]
                if digest is not None:
                    digest.update(chunk)
                self.write(position, chunk)
                position += len(chunk)
        return None if digest is None else digest.hexdigest()

    def close(self) -> None:
        """Have all bytes on the disk, and close."""
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise _failed(self.path, error) from None
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close without waiting for the disk."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _dense_parts(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """A tensor as dense CPU tensors whose elements follow one another in C order."""
    if not tensor.numel():
        return []
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return [tensor]
    rows = tensor.shape[0] if tensor.ndim else 1
    bytes_per_row = tensor.numel() // rows * tensor.dtype.itemsize
    if tensor.ndim < 2 or tensor.numel() * tensor.dtype.itemsize <= STAGE:
        return [tensor.cpu().contiguous()]
    return _Staged(tensor, max(1, STAGE // bytes_per_row))


class _Staged(Sequence[torch.Tensor]):
    """Runs of rows of a tensor, made dense when they are asked for."""

    def __init__(self, tensor: torch.Tensor, rows: int) -> None:
        self.tensor, self.rows = tensor, rows

    def __len__(self) -> int:
        return -(-self.tensor.shape[0] // self.rows)

    def __getitem__(self, number: int) -> torch.Tensor:  # type: ignore[override]
        if number >= len(self):
            raise IndexError(number)
        return self.tensor[number * self.rows : (number + 1) * self.rows].cpu().contiguous()


def _reserve(fd: int, size: int) -> None:
    """Claim room for a whole file, so that a full disk is noticed before anything is written."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (22, 95):  # the file system cannot (EINVAL, EOPNOTSUPP)
            raise
        os.ftruncate(fd, size)


def _failed(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError("CKP108", f"{path} cannot be written: {error.strerror}")
