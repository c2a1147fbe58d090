# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The least that a load can cost: files read into memory that is there already."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

STEP = 1 << 30  # one call reads less than 2 GiB


class Files:
    """Parts of files and a buffer for each, touched beforehand."""

    def __init__(self, parts: Sequence[tuple[Path, int, int]]) -> None:
        """``parts``: path, first byte, number of bytes."""
        self.parts = [(path, at, torch.zeros(size, dtype=torch.uint8)) for path, at, size in parts]

    def read(self) -> None:
        for path, at, buffer in self.parts:
            view = memoryview(buffer.numpy())
            file = os.open(path, os.O_RDONLY)
            try:
                done = 0
                while done < len(view):
                    step = os.preadv(file, [view[done : done + STEP]], at + done)
                    if step == 0:
                        raise EOFError(f"{path} ends early")
                    done += step
            finally:
                os.close(file)


def share(folder: Path, rank: int, ranks: int) -> Files:
    """This rank's part of the bytes of all files of a folder."""
    parts = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        first, last = size * rank // ranks, size * (rank + 1) // ranks
        parts.append((path, first, last - first))
    return Files(parts)
