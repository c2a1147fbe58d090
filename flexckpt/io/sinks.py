# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Layouts that can be written: how a stream of tensors becomes files."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from flexckpt.index import Stored
from flexckpt.io.dcp_names import stored_name
from flexckpt.io.dcp_writer import DcpRecord, write_metadata, write_rank_file
from flexckpt.io.huggingface_writer import create_files, plan_files
from flexckpt.io.native import INDEX, RankFile, Record, file_name, index_text, new_header
from flexckpt.io.rank_file import FileWriter
from flexckpt.model import TensorSpec
from flexckpt.states import join_name


class Output(NamedTuple):
    """A whole tensor that is to be written."""

    key: str
    state: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def name(self) -> str:
        return join_name(self.key, self.state)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


Stream = Iterable[list[tuple[Output, torch.Tensor]]]  # batches, valid until the second next


class Sink(Protocol):
    """A layout being written into a folder by several ranks.

    Attributes:
        own_disks: whether every rank writes files of its own, so that ranks may do without seeing
            those of the others.
    """

    own_disks: bool

    def begin(self, folder: Path) -> None:
        """Make what all ranks need; on one rank, before any writes."""

    def write(self, folder: Path, rank: int, outputs: Sequence[Output], stream: Stream) -> Any:
        """Write the outputs of one rank, which come in this order; records for :meth:`finish`."""

    def finish(self, folder: Path, records: Sequence[Any]) -> None:
        """Write the index from the records of all ranks; on one rank, after all have written."""


def overlapped(
    stream: Stream, consume: Callable[[list[tuple[Output, torch.Tensor]]], None]
) -> None:
    """Write one batch in a thread while the next one is being filled."""
    with ThreadPoolExecutor(1, thread_name_prefix="flexckpt-write") as worker:
        pending: Future[None] | None = None
        for batch in stream:
            if pending is not None:
                pending.result()
            pending = worker.submit(consume, batch)
        if pending is not None:
            pending.result()


class NativeSink:
    """flexckpt's own layout."""

    own_disks = True

    def __init__(self, extra: Mapping[str, Any], *, checksums: bool = True) -> None:
        self.extra = extra
        self.checksums = checksums

    def begin(self, folder: Path) -> None:
        pass

    def write(self, folder: Path, rank: int, outputs: Sequence[Output], stream: Stream) -> RankFile:
        tensors = [(f"{o.name}#0", o.dtype, o.shape) for o in outputs]
        header, entries, file = new_header(tensors)
        writer = FileWriter(folder / file_name(rank), file.size)

        def consume(batch: list[tuple[Output, torch.Tensor]]) -> None:
            for output, tensor in batch:
                at = entries[f"{output.name}#0"].start
                digest = writer.write_tensor(at, tensor, checksum=self.checksums)
                zero = (0,) * len(output.shape)
                stored = Stored(zero, output.shape, None, rank, at, None, None, digest)
                file.records.append(
                    Record(output.key, output.state, output.dtype, output.shape, stored)
                )

        try:
            writer.write(0, header)
            overlapped(stream, consume)
            writer.close()
        finally:
            writer.abandon()
        return file

    def finish(self, folder: Path, records: Sequence[RankFile]) -> None:
        write_index(folder, records, self.extra)


def write_index(
    folder: Path,
    files: Sequence[RankFile],
    extra: Mapping[str, Any],
    by_mesh: Container[str] = (),
) -> None:
    """Write index.json onto the disk."""
    data = index_text(files, extra, by_mesh).encode()
    writer = FileWriter(folder / INDEX, len(data))
    try:
        writer.write(0, data)
        writer.close()
    finally:
        writer.abandon()


class HuggingFaceSink:
    """safetensors files of limited size with the index of Hugging Face."""

    own_disks = False

    def __init__(
        self,
        outputs: Sequence[Output],
        shard_size: int | str,
        aliases: Mapping[str, str],
    ) -> None:
        specs = {o.name: TensorSpec(o.shape, o.dtype) for o in outputs}
        tied = {a: key for a, key in aliases.items() if key in specs and a not in specs}
        self.plan = plan_files(specs, shard_size, tied)
        self.places = {
            name: (number, entry.start)
            for number, file in enumerate(self.plan.files)
            for name, entry in file.tensors.items()
        }

    def begin(self, folder: Path) -> None:
        create_files(folder, self.plan)

    def write(self, folder: Path, rank: int, outputs: Sequence[Output], stream: Stream) -> None:
        writers: dict[int, FileWriter] = {}

        def consume(batch: list[tuple[Output, torch.Tensor]]) -> None:
            for output, tensor in batch:
                number, position = self.places[output.name]
                if number not in writers:
                    file = self.plan.files[number]
                    writers[number] = FileWriter(folder / file.name, file.size, create=False)
                writers[number].write_tensor(position, tensor, checksum=False)

        try:
            overlapped(stream, consume)
            for writer in writers.values():
                writer.close()
        finally:
            for writer in writers.values():
                writer.abandon()

    def finish(self, folder: Path, records: Sequence[None]) -> None:
        pass


class DcpSink:
    """torch.distributed.checkpoint's layout, of whole tensors."""

    own_disks = True

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self.extra = extra

    def begin(self, folder: Path) -> None:
        pass

    def write(
        self, folder: Path, rank: int, outputs: Sequence[Output], stream: Stream
    ) -> list[DcpRecord]:
        rows = (
            (stored_name(o.key, o.state), o.shape, (0,) * len(o.shape), tensor)
            for batch in stream
            for o, tensor in batch
        )
        return write_rank_file(folder, rank, rows, self.extra if rank == 0 else None)

    def finish(self, folder: Path, records: Sequence[list[DcpRecord]]) -> None:
        write_metadata(folder, [record for mine in records for record in mine])
