# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.load: fill tensors from a checkpoint of any known layout."""

import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
import xxhash

from flexckpt.collect import State, mesh_keys, shards_in, specs_of, targets_of
from flexckpt.comm.group import Comm
from flexckpt.errors import TransferError
from flexckpt.execute import FileSource, Stats
from flexckpt.index import SourceIndex, Stored
from flexckpt.io.detect import read_index
from flexckpt.io.ranged import FilePool
from flexckpt.lang import Program, compile_program
from flexckpt.model import Shard
from flexckpt.plan.planner import make_plan
from flexckpt.replicas import share, suppliers_of
from flexckpt.states import STAND_INS, WEIGHT, join_name
from flexckpt.tied import Tied
from flexckpt.transfer import carry_out, make_schedule, split_batches
from flexckpt.twins import check_copies

if TYPE_CHECKING:
    import torch.distributed as dist

Strict = bool | Mapping[str, str]


@dataclass(slots=True)
class LoadReport:
    """What a load did.

    Attributes:
        missing: targets that the checkpoint has no data for, left as they were (only where
            ``strict`` admits it).
        unexpected: tensors of the checkpoint that nothing took.
        kept: targets that the mapping leaves as they were.
        stand_ins: targets whose state came from another: "w@master: weight of w".
        extra: what was saved beside the tensors.
        stats: bytes that this rank read, sent and received.
    """

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)
    stats: Stats = field(default_factory=Stats)


def load(
    targets: State,
    path: str | os.PathLike[str],
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    strict: Strict = True,
    cast: bool = False,
    layout: Literal["paddle", "torch"] = "paddle",
    read_once: bool = True,
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> LoadReport:
    """Fill tensors in place from a checkpoint, re-sharded and rewritten as the mapping says.

    In a distributed job every rank of the group calls this with the tensors that it holds.

    Args:
        targets: tensors, DTensors, :class:`flexckpt.Shard` objects or lists of those by name
            (``w``, ``w@exp_avg``), in dictionaries that may be nested; or a list of shards.
        path: a checkpoint that flexckpt, torch DCP, DeepSpeed, Megatron or Paddle wrote, or
            safetensors or torch files; recognized by itself.
        aoa: the mapping from the checkpoint to the targets; None if names and shapes are the same.
        reverse: ``aoa`` describes the opposite direction; its inverse is used.
        strict: True raises for targets without data and for tensors that nothing takes. A
            dictionary sets "missing", "unexpected" and "unmatched" to "error", "warn" or "ignore".
        cast: let values take the dtype of their target without a cast in the mapping.
        layout: of linear layers, which gives the default axis of the fuse macros: "paddle" for
            ``[in, out]`` (axis 1), "torch" for ``[out, in]`` (axis 0).
        read_once: what several ranks of a machine hold alike is read by one and sent to the others.
        group: the ranks that load together; all if None.
        timeout: seconds that a rank waits for another.

    Returns:
        What was done; see :class:`LoadReport`.

    Raises:
        AoaError: the mapping does not fit. Nothing was changed.
        CheckpointError: the checkpoint is damaged or does not hold what is needed.
        LayoutError: the targets do not fit one another, or a dtype differs and ``cast`` is off.
        TransferError: another rank failed.
    """
    comm = Comm(group, timeout)
    report = LoadReport()
    comm.same(aoa, reverse, strict, cast, layout, read_once)
    index = shared_index(Path(path).absolute(), comm)
    with comm.together("looking at the targets"):
        literal = {key for key, state in index.entries if state == WEIGHT}
        shards, placed = shards_in(targets, literal), mesh_keys(targets)
    index = index.with_aliases({*(s.key for s in shards), *mentioned(aoa, index.aliases)})
    stored = index.specs()
    # A weight that only has a master copy takes the dtype that is wanted.
    cast_all = cast or any((key, WEIGHT) not in index.entries for key in stored)
    specs = specs_of(shards, comm, dtypes=not cast_all, known=stored, by_mesh=placed)
    seen = files_seen(index, comm)
    with comm.together("planning"):
        program = compile_program(
            aoa or [], stored, specs, reverse=reverse, strict=strict, layout=layout
        )
        left = program.kept | set(program.missing)
        tied = Tied([s for s in shards if s.key not in left])
        absent = _absent(tied.shards, program, index, strict)
        wanted = [s for s in tied.shards if join_name(s.key, s.state) not in absent]
        report.missing, report.kept = sorted({*program.missing, *absent}), sorted(program.kept)
        report.unexpected, report.extra = sorted(program.unexpected), index.extra
    suppliers = suppliers_of(wanted, comm) if read_once else [comm.rank] * len(wanted)
    own = [s for s, rank in zip(wanted, suppliers, strict=True) if rank == comm.rank]
    mine = seen[comm.rank]

    def prefer(stored: Stored) -> int:
        return 0 if mine[stored.file] else 1

    def supplier(found: Sequence[tuple[Stored, str]]) -> Callable[[int], int]:
        return file_suppliers(found, index, comm, seen)

    with comm.together("planning"):
        plan = make_plan(index, targets_of(own), program.outputs, prefer=prefer, cast=cast)
        supplied = supplier(plan.shards)
        report.stand_ins = plan.stand_ins
    batches = split_batches([s.tensor.numel() * s.tensor.dtype.itemsize for s in own])
    schedule = make_schedule(plan, batches, supplied, comm)
    tensors = {n: s.tensor for n, s in enumerate(own)}
    stats = report.stats
    with torch.no_grad(), reading(index, comm) as (source, pool):
        check_copies(index, program, source, supplier, comm, stats=stats, prefer=prefer, pool=pool)
        for _ in carry_out(schedule, tensors, source, comm, stats, pool):
            pass
    if read_once and comm.size > 1:
        share(wanted, suppliers, comm, stats)
    with comm.together("comparing targets that share their memory"):
        tied.check()
    return report


def _absent(
    shards: Sequence[Shard], program: Program, index: SourceIndex, strict: Strict
) -> set[str]:
    """Names of states that no source of their variable has, where that is allowed."""
    rule = "error" if strict is True else "ignore"
    if isinstance(strict, Mapping):
        rule = strict.get("missing", "error")
    if rule == "error":
        return set()
    out = set()
    for s in shards:
        states = {s.state, STAND_INS.get(s.state, s.state)}
        sources = {p.source for p in program.outputs[s.key].pieces} or {s.key}
        if not any((source, state) in index.entries for source in sources for state in states):
            out.add(join_name(s.key, s.state))
    if out and rule == "warn":
        warnings.warn(f"the checkpoint does not hold {', '.join(sorted(out)[:8])}", stacklevel=3)
    return out


def mentioned(aoa: str | Sequence[str] | None, names: Iterable[str]) -> list[str]:
    """Those names of which a mapping may speak."""
    text = aoa or "" if isinstance(aoa, str | None) else "\n".join(map(str, aoa))
    return [name for name in names if name in text]


def shared_index(path: Path, comm: Comm) -> SourceIndex:
    """The index, read by every rank that sees the checkpoint, and handed on to the others."""
    sees = comm.gather(os.path.exists(path))
    index = None
    with comm.together("reading the index of the checkpoint"):
        if sees[comm.rank] or not any(sees):
            index = read_index(path)
    if all(sees):
        assert index is not None
        return index
    root = sees.index(True)
    with comm.together("handing on the index of the checkpoint"):
        text = pickle.dumps(_located(index)) if index is not None and comm.rank == root else None
    found: SourceIndex = pickle.loads(comm.broadcast(text, root))  # from a rank of this job
    return index or found


def _located(index: SourceIndex) -> SourceIndex:
    """The index with the places of all shards, for a rank that cannot look into the files."""
    if index.resolve is None:
        return index
    entries = {
        name: replace(
            entry,
            shards=[s if s.position is not None else index.resolve(s) for s in entry.shards],
        )
        for name, entry in index.entries.items()
    }
    return replace(index, entries=entries, resolve=None)


def files_seen(index: SourceIndex, comm: Comm) -> list[bytes]:
    """Which files each rank sees, a byte per file.

    Raises:
        TransferError: NET102 if the ranks see different checkpoints at their paths.
    """
    mine = bytes(map(os.path.exists, index.files)), xxhash.xxh3_64_digest(b"".join(index.marks))
    told = comm.gather(mine)
    if len({mark for _, mark in told}) > 1:
        raise TransferError("NET102", f"the ranks see different checkpoints at {index.path}")
    return [seen for seen, _ in told]


def file_suppliers(
    shards: Sequence[tuple[Stored, str]], index: SourceIndex, comm: Comm, seen: Sequence[bytes]
) -> Callable[[int], int]:
    """Shard of a plan -> this rank if it sees the file, else one that does.

    Raises:
        TransferError: NET103 if no rank does.
    """
    chosen: list[int] = []
    for stored, _ in shards:
        ranks = [rank for rank in range(comm.size) if seen[rank][stored.file]]
        if not ranks:
            raise TransferError(
                "NET103",
                f"no rank sees {index.files[stored.file]}, which holds data that is needed",
            )
        chosen.append(comm.rank if comm.rank in ranks else ranks[comm.rank % len(ranks)])
    return chosen.__getitem__


@contextmanager
def reading(
    index: SourceIndex, comm: Comm
) -> Iterator[tuple[FileSource, ThreadPoolExecutor | None]]:
    """The files of a checkpoint, and threads that read them.

    The processors are shared out among the ranks of this machine.
    """
    threads = max(1, min(8, (os.cpu_count() or 1) // len(comm.node())))
    pool = ThreadPoolExecutor(threads) if threads > 1 else nullcontext()
    with FilePool(index.files, index.marks) as files, pool as workers:
        yield FileSource(files), workers
