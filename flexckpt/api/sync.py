# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.sync: from the ranks that train to the ranks that serve, without files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from flexckpt.api.load import Strict
from flexckpt.collect import State, mesh_keys, shards_in, specs_of, targets_of
from flexckpt.comm.group import Comm
from flexckpt.errors import LayoutError
from flexckpt.execute import Stats
from flexckpt.index import SourceIndex
from flexckpt.lang import Program, compile_program
from flexckpt.memory_index import held, memory_index, memory_source, supplier_in_memory
from flexckpt.model import Shard
from flexckpt.plan.planner import make_plan
from flexckpt.schedule_cache import cached
from flexckpt.transfer import Schedule, carry_out, make_schedule, split_batches
from flexckpt.twins import check_copies

if TYPE_CHECKING:
    import torch.distributed as dist


def sync(
    source: State | None,
    targets: State | None,
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    strict: Strict = True,
    cast: bool = False,
    layout: Literal["paddle", "torch"] = "paddle",
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
) -> Stats:
    """Fill tensors of some ranks from tensors of others, re-sharded and rewritten.

    Every rank of the group calls this: those that train with ``source``, those that serve with
    ``targets``, and a rank that does both with both. Each element is sent straight to where it is
    needed. The plan is kept, so that the next call with the same shapes only moves data.

    Args:
        source: what this rank has, as in :func:`flexckpt.save`; None for nothing.
        targets: what is to be filled on this rank, as in :func:`flexckpt.load`; None for nothing.
        aoa: the mapping from ``source`` to ``targets``.
        reverse: ``aoa`` describes the opposite direction; its inverse is used.
        strict, cast, layout: see :func:`flexckpt.load`.
        group: all ranks that train or serve; all if None.
        timeout: seconds that a rank waits for another.

    Returns:
        Bytes that this rank sent and received.

    Raises:
        AoaError: the mapping does not fit. Nothing was changed.
        LayoutError: the shards are not whole tensors, a dtype differs and ``cast`` is off, or a
            target shares memory with a source.
        TransferError: another rank failed.
    """
    comm = Comm(group, timeout)
    with comm.together("looking at the tensors"):
        have = shards_in(source or {})
        want = shards_in(targets or {})
        placed = mesh_keys(source or {}), mesh_keys(targets or {})
        _check_apart(have, want)
    strictness = strict if isinstance(strict, bool) else tuple(sorted(strict.items()))
    said = aoa, reverse, strictness, cast, layout, *map(sorted, placed)

    def make() -> _Way:
        return _plan(have, want, placed, aoa, reverse, strict, cast, layout, comm)

    way = cached((said, [held(s) for s in have], _places(want)), comm, make)
    stats = Stats()
    filled = {n: want[number].tensor for n, number in enumerate(way.numbers)}
    prefer, supplier = supplier_in_memory(comm)
    memory = memory_source(have)
    with torch.no_grad():
        check_copies(way.sources, way.program, memory, supplier, comm, stats=stats, prefer=prefer)
        for _ in carry_out(way.schedule, filled, memory, comm, stats):
            pass
    return stats


class _Way(NamedTuple):
    """What is kept for the next call: which of the wanted shards are filled, and how."""

    numbers: list[int]
    schedule: Schedule
    sources: SourceIndex
    program: Program


def _plan(
    have: Sequence[Shard],
    want: Sequence[Shard],
    placed: tuple[set[str], set[str]],
    aoa: str | Sequence[str] | None,
    reverse: bool,
    strict: Strict,
    cast: bool,
    layout: Literal["paddle", "torch"],
    comm: Comm,
) -> _Way:
    index = memory_index(have, comm)
    there = specs_of(have, comm, by_mesh=placed[0])
    here = specs_of(want, comm, dtypes=not cast, known=there, by_mesh=placed[1])
    with comm.together("planning"):
        program = compile_program(
            aoa or [], there, here, reverse=reverse, strict=strict, layout=layout
        )
        left = program.kept | set(program.missing)
        numbers = [n for n, s in enumerate(want) if s.key not in left]
        wanted = [want[n] for n in numbers]
        prefer, supplier = supplier_in_memory(comm)
        plan = make_plan(index, targets_of(wanted), program.outputs, prefer=prefer, cast=cast)
    batches = split_batches([s.tensor.numel() * s.tensor.dtype.itemsize for s in wanted])
    schedule = make_schedule(plan, batches, supplier(plan.shards), comm)
    return _Way(numbers, schedule, index, program)


def _check_apart(have: Sequence[Shard], want: Sequence[Shard]) -> None:
    """Raise if filling a target would change a source that is still needed."""
    if not have or not want:
        return
    spans = sorted((*_span(s), role, s.key) for role, side in enumerate((have, want)) for s in side)
    end, owner = [-1, -1], ["", ""]
    for start, stop, role, key in spans:
        if start < stop and start < end[1 - role]:
            raise LayoutError(
                "LAY102", f"{key!r} and {owner[1 - role]!r}: a target and a source share memory"
            )
        if stop > end[role]:
            end[role], owner[role] = stop, key


def _span(shard: Shard) -> tuple[int, int]:
    """The bytes between the first and the last element of a shard, as addresses."""
    tensor = shard.tensor
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return start, start + (1 + sum((n - 1) * k for n, k in steps)) * tensor.dtype.itemsize


def _places(shards: Sequence[Shard]) -> list[object]:
    """What a plan knows of targets: the shards, and how they lie in their storages."""
    return [(held(s), s.tensor.stride(), s.tensor.storage_offset()) for s in shards]
