# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Copies on one rank: ranged reads where bytes lie side by side, strided copies elsewhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

from flexckpt.errors import CheckpointError, LayoutError
from flexckpt.io.ranged import FilePool, bytes_of
from flexckpt.model import dtype_name
from flexckpt.plan.copies import Copy
from flexckpt.plan.planner import Plan

READ_BYTES = 16 << 20  # a larger read is cut, so that threads share it
COPY_ELEMENTS = 4 << 20  # a larger strided copy is cut, so that casts need little memory


@dataclass(slots=True)
class Stats:
    """What an execution moved, in bytes."""

    read: int = 0
    sent: int = 0
    received: int = 0
    written: int = 0


class Wanted(NamedTuple):
    """The source side of a copy, as the rank that holds the shard understands it.

    Attributes:
        holder: number of the file, or of the rank.
        position: byte in the file, or number of the tensor.
        span: elements from the first to the last of the shard.
        dtype: name of the stored dtype.
        extents, strides, base: which elements of the shard.
    """

    holder: int
    position: int
    span: int
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    base: int


def wanted(plan: Plan, copy: Copy) -> Wanted:
    stored, dtype = plan.shards[copy.shard]
    position = stored.position or 0
    sides = copy.extents, copy.src_strides, copy.src_base
    return Wanted(stored.file, position, stored.span, dtype, *sides)


class FileSource:
    """Shards in files."""

    def __init__(self, files: FilePool) -> None:
        self.files = files

    def view(self, want: Wanted) -> torch.Tensor:
        """The elements as a tensor of their extents, which reads them when it is read."""
        dtype = getattr(torch, want.dtype)
        file = self.files[want.holder]
        file.check(want.position, want.position + want.span * dtype.itemsize)
        return file.view(dtype, want.position, want.extents, want.strides, want.base)

    def read_into(self, file: int, buffers: list[memoryview], position: int) -> None:
        """Fill buffers with bytes of a file from ``position`` on."""
        self.files[file].read_into(buffers, position)


class MemorySource:
    """Shards in tensors of this rank; copies count their elements in C order.

    One source serves one execution: it remembers the last tensor that it had to make dense.
    """

    def __init__(self, tensors: Mapping[int, torch.Tensor]) -> None:
        self.tensors = tensors
        self._dense: tuple[int, torch.Tensor] | None = None

    def view(self, want: Wanted) -> torch.Tensor:
        """The elements as a tensor of their extents."""
        tensor = self.tensors[want.position]
        if not tensor.is_contiguous():
            if self._dense is None or self._dense[0] != want.position:
                self._dense = want.position, tensor.contiguous()
            tensor = self._dense[1]
        return tensor.as_strided(want.extents, want.strides, tensor.storage_offset() + want.base)


AnySource = FileSource | MemorySource


def landing(
    plan: Plan, numbers: Iterable[int], tensors: Mapping[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """Where the copies of targets go: the targets, and for scalars a place for all their values."""
    landed = {}
    for n in numbers:
        landed[n] = tensors[n]
        if n in plan.scalars:
            # As exact as any dtype of a scalar, so that no two values become equal on the way.
            landed[n] = torch.empty(plan.scalars[n], dtype=torch.float64)
    return landed


def settle_scalars(
    plan: Plan, landed: Mapping[int, torch.Tensor], tensors: Mapping[int, torch.Tensor]
) -> None:
    """Give scalar targets the value that all their sources agree on.

    Raises:
        CheckpointError: CKP203 where they do not.
    """
    for number, values in landed.items():
        if number not in plan.scalars or not len(values):
            continue
        found = sorted(set(values.tolist()))
        if len(found) > 1:
            raise CheckpointError(
                "CKP203",
                f"{plan.names[number]!r} merges parameters whose values differ: {found}",
            )
        target = tensors[number]
        if not target.dtype.is_floating_point and not found[0].is_integer():
            raise LayoutError(
                "LAY103",
                f"{plan.names[number]!r} has dtype {dtype_name(target.dtype)}, which cannot hold "
                f"{found[0]}",
            )
        target.fill_(found[0])


def run_copies(
    plan: Plan,
    copies: Iterable[Copy],
    landed: Mapping[int, torch.Tensor],
    source: AnySource,
    stats: Stats,
    pool: Executor | None = None,
) -> None:
    """Carry out copies from a source that this rank can reach.

    Args:
        plan: the plan that the copies belong to.
        copies: which of them.
        landed: their targets by number.
        source: where their shards are.
        stats: gets the bytes that were read.
        pool: threads that share the work; the caller's alone if None.
    """
    work: list[Callable[[], object]] = []
    pending = list(copies)
    if isinstance(source, FileSource):
        pending = _read_directly(plan, pending, landed, source, work, stats)
    for copy in pending:
        target = landed[copy.target]
        if copy.shard < 0:
            work.append(_Fill(copy, target))
            continue
        if isinstance(source, FileSource):
            stats.read += copy.numel * getattr(torch, plan.shards[copy.shard][1]).itemsize
        for part in copy.chunks(COPY_ELEMENTS):
            work.append(_Strided(part, target, source, wanted(plan, part)))
    if pool is None or len(work) < 2:
        for step in work:
            step()
    else:
        for _ in pool.map(_call, work):
            pass


def _call(step: Callable[[], object]) -> None:
    step()


def _read_directly(
    plan: Plan,
    copies: Sequence[Copy],
    landed: Mapping[int, torch.Tensor],
    source: FileSource,
    work: list[Callable[[], object]],
    stats: Stats,
) -> list[Copy]:
    """Turn copies of adjacent bytes into as few reads as can be; return the other copies."""
    rest: list[Copy] = []
    reads: list[tuple[int, int, memoryview]] = []
    storages: dict[int, memoryview] = {}
    for copy in copies:
        target = landed[copy.target]
        size = target.dtype.itemsize
        if not _is_bytes(plan, copy, target):
            rest.append(copy)
            continue
        if copy.target not in storages:
            storages[copy.target] = bytes_of(target)
        first = copy.dst_base * size
        buffer = storages[copy.target][first : first + copy.numel * size]
        stored = plan.shards[copy.shard][0]
        position = (stored.position or 0) + copy.src_base * size
        stats.read += len(buffer)
        for start in range(0, len(buffer), READ_BYTES):
            reads.append((stored.file, position + start, buffer[start : start + READ_BYTES]))
    reads.sort(key=lambda r: r[:2])
    for file, group in groupby(reads, key=lambda r: r[0]):
        buffers: list[memoryview] = []
        begin = stop = total = -1
        for _, position, buffer in group:
            if position != stop or total + len(buffer) > READ_BYTES:
                if buffers:
                    work.append(_Read(source, file, buffers, begin))
                buffers, begin, total = [], position, 0
            buffers.append(buffer)
            total += len(buffer)
            stop = position + len(buffer)
        work.append(_Read(source, file, buffers, begin))
    return rest


def _is_bytes(plan: Plan, copy: Copy, target: torch.Tensor) -> bool:
    """Whether a copy moves adjacent bytes of a file, unchanged, to adjacent bytes of a tensor."""
    if copy.shard < 0 or len(copy.extents) != 1 or copy.run != copy.extents[0]:
        return False
    dtype = getattr(torch, plan.shards[copy.shard][1])
    if target.is_conj() or target.is_neg():  # its values are not its bytes
        return False
    return target.device.type == "cpu" and dtype == target.dtype and not casts_of(copy, dtype)


def casts_of(copy: Copy, final: torch.dtype) -> list[torch.dtype]:
    """The casts that copying into ``final`` does not do by itself."""
    dtypes = [getattr(torch, name) for name in copy.casts]
    return dtypes[:-1] if dtypes and dtypes[-1] == final else dtypes


@dataclass(slots=True)
class _Read:
    source: FileSource
    file: int
    buffers: list[memoryview]
    position: int

    def __call__(self) -> None:
        self.source.read_into(self.file, self.buffers, self.position)


@dataclass(slots=True)
class _Fill:
    copy: Copy
    target: torch.Tensor

    def __call__(self) -> None:
        destination(self.copy, self.target).fill_(self.copy.fill)


@dataclass(slots=True)
class _Strided:
    copy: Copy
    target: torch.Tensor
    source: AnySource
    want: Wanted

    def __call__(self) -> None:
        put(self.copy, self.target, self.source.view(self.want))


def destination(copy: Copy, target: torch.Tensor) -> torch.Tensor:
    """The target side of a copy, as a tensor of its extents."""
    return target.as_strided(copy.extents, copy.dst_strides, copy.dst_base)


def put(copy: Copy, target: torch.Tensor, values: torch.Tensor) -> None:
    """Write the source side of a copy into its target, through its casts."""
    for dtype in casts_of(copy, target.dtype):
        values = values.to(dtype)
    destination(copy, target).copy_(values)
