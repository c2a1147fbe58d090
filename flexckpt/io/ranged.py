# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Ranged reads: bytes of a file straight into tensors, and views of a file as a tensor."""

import mmap
import os
from collections import OrderedDict
from collections.abc import Sequence
from ctypes import c_char
from pathlib import Path
from stat import S_ISREG
from threading import Lock
from types import TracebackType

import torch

from flexckpt.errors import CheckpointError

IOV_MAX = 1024
# A private mapping keeps torch from warning of read-only memory; without a reservation the system
# does not count a file larger than the memory against its limit.
MAP_FLAGS = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)


class RangedFile:
    """One file of a checkpoint, opened for reading.

    Args:
        path: of the file.
        mark: what it must hold from byte 8 on.

    Raises:
        CheckpointError: CKP102 if there is no such file, CKP103 if it is not a file that can be
            read, or another one.
    """

    def __init__(self, path: Path, mark: bytes = b"") -> None:
        self.path = path
        self.fd = -1
        try:
            # Without O_NONBLOCK opening a pipe would wait for a writer.
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            found = os.fstat(self.fd)
            if not S_ISREG(found.st_mode):
                raise CheckpointError("CKP103", f"{path} is not a file")
            if mark and os.pread(self.fd, len(mark), 8) != mark:
                raise CheckpointError("CKP103", f"{path} is not the file that its index means")
        except FileNotFoundError:
            raise CheckpointError("CKP102", f"{path} does not exist") from None
        except OSError as error:
            raise CheckpointError("CKP103", f"{path} cannot be read: {error.strerror}") from None
        self.size = found.st_size
        self._map: mmap.mmap | None = None
        self._views: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    def check(self, start: int, stop: int) -> None:
        """Raise unless the file holds the bytes ``[start, stop)``."""
        if not 0 <= start <= stop <= self.size:
            raise CheckpointError(
                "CKP103",
                f"{self.path} has {self.size} bytes, but a tensor lies at {start}..{stop}",
            )

    def read_into(self, buffers: Sequence[memoryview], position: int) -> None:
        """Fill byte buffers, which lie one behind the other in the file from ``position`` on."""
        pending = [b for b in buffers if len(b)]
        while pending:
            done = os.preadv(self.fd, pending[:IOV_MAX], position)
            if done == 0:
                raise CheckpointError("CKP103", f"{self.path} ends at byte {position}")
            position += done
            while pending and done >= len(pending[0]):
                done -= len(pending.pop(0))
            if done:
                pending[0] = pending[0][done:]

    def view(
        self,
        dtype: torch.dtype,
        position: int,
        extents: Sequence[int],
        strides: Sequence[int],
        base: int,
    ) -> torch.Tensor:
        """A strided view of the file; strides and base count elements from the byte
        ``position``."""
        shift = position % dtype.itemsize
        key = dtype, shift
        if key not in self._views:
            if self._map is None:
                self._map = mmap.mmap(
                    self.fd, 0, flags=MAP_FLAGS, prot=mmap.PROT_READ | mmap.PROT_WRITE
                )
            count = (self.size - shift) // dtype.itemsize
            self._views[key] = torch.frombuffer(self._map, dtype=dtype, count=count, offset=shift)
        # frombuffer counts storage offsets from `shift` on.
        return self._views[key].as_strided(extents, strides, position // dtype.itemsize + base)

    def forget(self) -> None:
        """Let the system take back the pages that views have touched."""
        if self._map is not None:
            self._map.madvise(mmap.MADV_DONTNEED)

    def __del__(self) -> None:
        # Views keep the mapping alive, which has a descriptor of its own.
        if self.fd >= 0:
            os.close(self.fd)


class FilePool:
    """Files by number, opened on first use; the least used are closed when many are open."""

    def __init__(
        self, paths: Sequence[Path], marks: Sequence[bytes] = (), *, limit: int = 256
    ) -> None:
        self.paths = paths
        self.marks = marks or [b""] * len(paths)
        self.limit = limit
        self._open: OrderedDict[int, RangedFile] = OrderedDict()
        self._lock = Lock()

    def __getitem__(self, number: int) -> RangedFile:
        with self._lock:
            file = self._open.get(number)
            if file is None:
                file = self._open[number] = RangedFile(self.paths[number], self.marks[number])
                if len(self._open) > self.limit:
                    self._open.popitem(last=False)  # closed when its last reader lets go of it
            self._open.move_to_end(number)
            return file

    def forget(self) -> None:
        """Let the system take back the pages that views have touched."""
        with self._lock:
            for file in self._open.values():
                file.forget()

    def __enter__(self) -> "FilePool":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._open.clear()


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The storage of a CPU tensor as bytes, from its first byte on, writable."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return memoryview(b"")
    return memoryview((c_char * storage.nbytes()).from_address(storage.data_ptr())).cast("B")
