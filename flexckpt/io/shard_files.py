# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Layouts that keep shards as they are: every rank writes its own, without talking to another."""

from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from flexckpt.index import Stored
from flexckpt.io.dcp_names import stored_name
from flexckpt.io.dcp_writer import DcpRecord, write_metadata, write_rank_file
from flexckpt.io.native import RankFile, Record, file_name, new_header
from flexckpt.io.rank_file import FileWriter
from flexckpt.io.sinks import write_index
from flexckpt.plan.ownership import Held

Holding = tuple[Held, torch.Tensor]


class ShardFiles(Protocol):
    """A layout that keeps shards as they are."""

    def write(self, folder: Path, rank: int, shards: Sequence[Holding]) -> Any:
        """Write the shards of one rank; records for :meth:`finish`."""

    def finish(self, folder: Path, records: Sequence[Any]) -> None:
        """Write the index from the records of all ranks; on one rank, after all have written."""


class NativeShards:
    """flexckpt's own layout."""

    def __init__(
        self,
        extra: Mapping[str, Any],
        *,
        checksums: bool = True,
        by_mesh: Container[str] = (),
    ) -> None:
        self.extra = extra
        self.checksums = checksums
        self.by_mesh = by_mesh

    def write(self, folder: Path, rank: int, shards: Sequence[Holding]) -> RankFile:
        """Write the file of a rank; what the index must say of it."""
        names = [f"{h.name}#{n}" for n, (h, _) in enumerate(shards)]
        described = [
            (name, t.dtype, tuple(t.shape)) for name, (_, t) in zip(names, shards, strict=True)
        ]
        header, places, file = new_header(described)
        writer = FileWriter(folder / file_name(rank), file.size)
        try:
            writer.write(0, header)
            for name, (h, tensor) in zip(names, shards, strict=True):
                at = places[name].start
                digest = writer.write_tensor(at, tensor, checksum=self.checksums)
                stored = Stored(h.offset, h.shape, h.flat_range, rank, at, None, None, digest)
                file.records.append(Record(h.key, h.state, h.dtype, h.global_shape, stored))
            writer.close()
        finally:
            writer.abandon()
        return file

    def finish(self, folder: Path, records: Sequence[RankFile]) -> None:
        write_index(folder, records, self.extra, self.by_mesh)


class DcpShards:
    """torch.distributed.checkpoint's layout, which has no flattened ranges."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self.extra = extra

    def write(self, folder: Path, rank: int, shards: Sequence[Holding]) -> list[DcpRecord]:
        rows = ((stored_name(h.key, h.state), h.global_shape, h.offset, t) for h, t in shards)
        return write_rank_file(folder, rank, rows, self.extra if rank == 0 else None)

    def finish(self, folder: Path, records: Sequence[list[DcpRecord]]) -> None:
        write_metadata(folder, [record for mine in records for record in mine])
