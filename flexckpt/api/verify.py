# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.verify: whether a checkpoint is whole, and its bytes those that were written."""

import os
from collections import defaultdict
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import xxhash

from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.io.detect import read_index
from flexckpt.io.ranged import RangedFile
from flexckpt.plan.cover import Cover
from flexckpt.states import join_name

CHUNK = 4 << 20  # bytes that are in memory at a time


class Verified(NamedTuple):
    """What was verified.

    Attributes:
        layout: of the checkpoint.
        shards: how many there are.
        summed: bytes whose checksums match; 0 for layouts that keep none.
    """

    layout: str
    shards: int
    summed: int


def verify(
    path: str | os.PathLike[str], *, progress: Callable[[int, int, str], object] | None = None
) -> Verified:
    """Check that a checkpoint has whole tensors, in files of the right size, unchanged.

    Works for every layout; only flexckpt's own keeps checksums. Little is in memory at a time.

    Args:
        path: a checkpoint of any known layout.
        progress: is called with ``(bytes done, bytes in all, name)`` after every shard.

    Raises:
        CheckpointError: CKP107 for a shard whose bytes are others than were written, CKP102 or
            CKP103 for a file that is missing, cut short or another one, CKP201 or CKP202 where the
            shards are not whole tensors.
    """
    return verify_index(read_index(path), progress)


def verify_index(
    index: SourceIndex, progress: Callable[[int, int, str], object] | None = None
) -> Verified:
    """:func:`verify` of a checkpoint whose index was read."""
    by_file: dict[int, list[tuple[Entry, Stored]]] = defaultdict(list)
    total = shards = 0
    for entry in index.entries.values():
        _check_whole(entry)
        for stored in entry.shards:
            if stored.position is None and index.resolve is not None:
                stored = index.resolve(stored)
            by_file[stored.file].append((entry, stored))
            shards += 1
            if stored.checksum is not None:
                total += stored.span * entry.dtype.itemsize
    done = 0
    marks = index.marks or [b""] * len(index.files)
    for number in sorted(by_file):
        file = RangedFile(index.files[number], marks[number])
        for entry, stored in by_file[number]:
            start = stored.position or 0
            file.check(start, start + stored.span * entry.dtype.itemsize)
            if stored.checksum is None:
                continue
            done += _check_bytes(entry, stored, file)
            if progress is not None:
                progress(done, total, join_name(entry.key, entry.state))
    return Verified(index.layout, shards, total)


def _check_whole(entry: Entry) -> None:
    held = sum(region.box.numel for region, _ in Cover(entry).parts)
    if held != prod(entry.shape):
        name = join_name(entry.key, entry.state)
        raise CheckpointError(
            "CKP201", f"{name!r}: there are {held} of its {prod(entry.shape)} elements"
        )


def _check_bytes(entry: Entry, stored: Stored, file: RangedFile) -> int:
    """Compare the checksum of a shard; how many bytes it has."""
    digest = xxhash.xxh3_64()
    size = left = stored.span * entry.dtype.itemsize
    position = stored.position or 0
    buffer = memoryview(bytearray(min(CHUNK, left)))
    while left:
        part = buffer[: min(len(buffer), left)]
        file.read_into([part], position)
        digest.update(part)
        position += len(part)
        left -= len(part)
    if digest.hexdigest() != stored.checksum:
        name = join_name(entry.key, entry.state)
        where = f"the shard at {stored.offset} of shape {stored.shape}"
        if stored.flat_range is not None:
            where += f", elements {stored.flat_range[0]}..{stored.flat_range[1]},"
        raise CheckpointError(
            "CKP107",
            f"{name!r}: {where} in {file.path} has the checksum {digest.hexdigest()}, "
            f"not {stored.checksum}",
        )
    return size
