# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``verify``: whether a checkpoint is whole, and its bytes those that were written."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flexckpt.cli.progress import Report, shown_progress
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.io.detect import read_index
from flexckpt.io.ranged import RangedFile
from flexckpt.wording import size_text

CHUNK = 4 << 20


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify", help="check sizes and checksums of a checkpoint"
    )
    parser.add_argument("source", metavar="SRC", help="a checkpoint of any known layout")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    index = read_index(options.source)
    with shown_progress(options.quiet) as progress:
        summed = verify(index, progress)
    if options.quiet:
        return
    shards = sum(len(entry.shards) for entry in index.entries.values())
    print(f"{options.source}: {index.layout}, {shards} shards are where the index says")
    if summed:
        print(f"checksums of {size_text(summed)} match")
    else:
        print("this layout stores no checksums; only sizes could be checked")


def verify(index: SourceIndex, progress: Report | None = None) -> int:
    """Check that every shard lies in its file, and its checksum where it has one.

    Args:
        index: of the checkpoint.
        progress: told ``(bytes_done, bytes_total, name)``.

    Returns:
        The number of bytes whose checksums match.

    Raises:
        CheckpointError: CKP102, CKP103 or CKP107, naming the tensor and the file.
    """
    shards = list(_shards(index))
    sizes = [path.stat().st_size if path.exists() else None for path in index.files]
    for entry, stored in shards:
        _check_size(entry, stored, index.files[stored.file], sizes[stored.file])
    shards = [one for one in shards if one[1].checksum is not None]
    total = sum(stored.span * entry.dtype.itemsize for entry, stored in shards)
    done = 0
    for number, path in enumerate(index.files):
        here = [one for one in shards if one[1].file == number]
        if not here:
            continue
        file = RangedFile(path)
        for entry, stored in here:
            done += _check_sum(entry, stored, file)
            if progress is not None:
                progress(done, total, entry.key)
    return total


def _shards(index: SourceIndex) -> Iterator[tuple[Entry, Stored]]:
    for entry in index.entries.values():
        for stored in entry.shards:
            if stored.position is None and index.resolve is not None:
                stored = index.resolve(stored)
            yield entry, stored


def _check_size(entry: Entry, stored: Stored, path: Path, size: int | None) -> None:
    if size is None:
        raise CheckpointError("CKP102", f"{path} does not exist; it holds part of {entry.key!r}")
    start = stored.position or 0
    stop = start + stored.span * entry.dtype.itemsize
    if stop > size:
        raise CheckpointError(
            "CKP103", f"{path} has {size} bytes, but {entry.key!r} lies at {start}..{stop}"
        )


def _check_sum(entry: Entry, stored: Stored, file: RangedFile) -> int:
    import xxhash

    digest = xxhash.xxh3_64()
    position, left = stored.position or 0, stored.span * entry.dtype.itemsize
    size = left
    buffer = memoryview(bytearray(min(CHUNK, left)))
    while left:
        part = buffer[: min(len(buffer), left)]
        file.read_into([part], position)
        digest.update(part)
        position += len(part)
        left -= len(part)
    if digest.hexdigest() != stored.checksum:
        raise CheckpointError(
            "CKP107",
            f"{entry.key!r} ({entry.state}) in {file.path} has the checksum {digest.hexdigest()}, "
            f"not {stored.checksum}: its bytes are not those that were written",
        )
    return size
