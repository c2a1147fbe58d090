# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.sync: from the ranks that train to the ranks that serve, without files."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

from flexckpt.api.load import Strict
from flexckpt.collect import State, shards_in, specs_of, targets_of
from flexckpt.comm.group import Comm
from flexckpt.errors import LayoutError
from flexckpt.execute import Stats
from flexckpt.lang import compile_program
from flexckpt.memory_index import held, memory_index, memory_source, supplier_in_memory
from flexckpt.model import Shard
from flexckpt.plan.planner import make_plan
from flexckpt.schedule_cache import cached
from flexckpt.transfer import Schedule, carry_out, make_schedule, split_batches

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
        LayoutError: the shards are not whole tensors, a dtype differs and ``cast`` is off, or a target
            shares memory with a source.
        TransferError: another rank failed.
    """
    comm = Comm(group, timeout)
    with comm.together("looking at the tensors"):
        have = shards_in(source or {})
        want = shards_in(targets or {})
        _check_apart(have, want)
    strictness = strict if isinstance(strict, bool) else tuple(sorted(strict.items()))
    what = aoa, reverse, strictness, cast, layout, [held(s) for s in have], _places(want)

    def make() -> tuple[list[int], Schedule]:
        return _schedule(have, want, aoa, reverse, strict, cast, layout, comm)

    numbers, schedule = cached(what, comm, make)
    stats = Stats()
    filled = {n: want[number].tensor for n, number in enumerate(numbers)}
    with torch.no_grad():
        for _ in carry_out(schedule, filled, memory_source(have), comm, stats):
            pass
    return stats


def _schedule(
    have: Sequence[Shard],
    want: Sequence[Shard],
    aoa: str | Sequence[str] | None,
    reverse: bool,
    strict: Strict,
    cast: bool,
    layout: Literal["paddle", "torch"],
    comm: Comm,
) -> tuple[list[int], Schedule]:
    """Which of the wanted shards are filled, and how."""
    index = memory_index(have, comm)
    there = specs_of(have, comm)
    here = specs_of(want, comm, dtypes=not cast, known=there)
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
    return numbers, make_schedule(plan, batches, supplier(plan.shards), comm)


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
