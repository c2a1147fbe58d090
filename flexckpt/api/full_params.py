# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.full_params: whole tensors of a sharded model, one by one, with bounded memory."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from flexckpt.api.like import warn_of_guesses
from flexckpt.boxes import shard_regions
from flexckpt.collect import State, mesh_keys, shards_in, specs_of
from flexckpt.comm.group import Comm
from flexckpt.errors import FlexckptError
from flexckpt.execute import Stats
from flexckpt.export import outputs_of
from flexckpt.io.sinks import Output
from flexckpt.lang import compile_program
from flexckpt.memory_index import held, memory_index, memory_source, supplier_in_memory
from flexckpt.model import Shard, dtype_name
from flexckpt.plan.planner import make_plan
from flexckpt.plan.targets import Target
from flexckpt.schedule_cache import cached
from flexckpt.states import WEIGHT
from flexckpt.transfer import Schedule, carry_out, make_schedule, split_batches

if TYPE_CHECKING:
    import torch.distributed as dist


def full_params(
    state: State,
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    layout: Literal["paddle", "torch"] = "paddle",
    states: Sequence[str] = (WEIGHT,),
    ranks: Sequence[int] | None = None,
    batch_bytes: int = 256 << 20,
    group: "dist.ProcessGroup | None" = None,
    timeout: float | None = None,
    stats: Stats | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Whole tensors of what the ranks hold together, rewritten by a mapping, in a fixed order.

    Every rank of the group runs the generator to its end. The plan is kept, so that the next call
    with the same shapes only moves data.

    Args:
        state: as in :func:`flexckpt.save`.
        aoa: the mapping from the names and shapes of ``state`` to those wanted.
        reverse: ``aoa`` describes the opposite direction; its inverse is used.
        layout: see :func:`flexckpt.load`.
        states: which states.
        ranks: the ranks of the group that want the tensors; all if None. The others get none.
        batch_bytes: tensors of this size together, or one larger tensor, are in flight at a time.
        group: the ranks; all if None.
        timeout: seconds that a rank waits for another.
        stats: gets the bytes that were sent and received.

    Yields:
        ``(name, tensor)``; a new CPU tensor each.

    Raises:
        AoaError: the mapping does not fit.
        LayoutError: the ranks do not hold whole tensors.
        TransferError: another rank failed.
    """
    comm = Comm(group, timeout)
    with comm.together("looking at the state"):
        shards, placed = shards_in(state), mesh_keys(state)
        strangers = [r for r in ranks or () if not 0 <= r < comm.size]
        if strangers:
            raise FlexckptError("ARG101", f"ranks must be of the group, not {strangers}")
    wants = ranks is None or comm.rank in ranks
    rewrite = aoa, reverse, layout, tuple(states), wants, batch_bytes
    what = rewrite, sorted(placed), [held(s) for s in shards]

    def make() -> tuple[list[Output], Schedule]:
        return _schedule(shards, placed, rewrite, comm)

    outputs, schedule = cached(what, comm, make)

    def empty(number: int) -> torch.Tensor:
        return torch.empty(outputs[number].shape, dtype=outputs[number].dtype)

    batches = carry_out(schedule, empty, memory_source(shards), comm, stats or Stats())
    while True:
        with torch.no_grad():  # not around the yields: it would reach whoever takes the tensors
            batch = next(batches, None)
        if batch is None:
            return
        for number in list(batch):
            yield outputs[number].name, batch.pop(number)


def _schedule(
    shards: Sequence[Shard],
    placed: set[str],
    rewrite: tuple[
        str | Sequence[str] | None, bool, Literal["paddle", "torch"], tuple[str, ...], bool, int
    ],
    comm: Comm,
) -> tuple[list[Output], Schedule]:
    aoa, reverse, layout, states, wants, batch_bytes = rewrite
    index = memory_index(shards, comm)
    specs = specs_of(shards, comm, by_mesh=placed)
    with comm.together("planning"):
        program = compile_program(aoa or [], specs, None, reverse=reverse, layout=layout)
        warn_of_guesses(program)
        outputs = outputs_of(index, program.outputs, states)
        batches = split_batches([o.nbytes for o in outputs], batch_bytes)
        targets = [_whole(o) for o in outputs] if wants else []
        prefer, supplier = supplier_in_memory(comm)
        plan = make_plan(index, targets, program.outputs, prefer=prefer)
    own = batches if wants else []
    return outputs, make_schedule(plan, own, supplier(plan.shards), comm)


def _whole(output: Output) -> Target:
    regions = tuple(shard_regions((0,) * len(output.shape), output.shape))
    return Target(output.key, output.state, output.shape, dtype_name(output.dtype), regions)
