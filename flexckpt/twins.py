# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tensors that a program can take from several places: the copies must be equal.

A mapping that ties (``e -> a``, ``e -> b``) has an inverse only where ``a`` and ``b`` still agree.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

import torch

from flexckpt.boxes import shard_regions
from flexckpt.comm.group import Comm
from flexckpt.errors import AoaError
from flexckpt.execute import AnySource, Stats, destination
from flexckpt.export import outputs_of
from flexckpt.index import SourceIndex, Stored
from flexckpt.io.sinks import Output
from flexckpt.lang import Program
from flexckpt.model import dtype_name, same_values
from flexckpt.pieces import Variable
from flexckpt.plan.cover import Preference
from flexckpt.plan.planner import Plan, make_plan
from flexckpt.plan.readers import balanced
from flexckpt.plan.targets import Target
from flexckpt.states import is_scalar
from flexckpt.transfer import Supplier, carry_out, make_schedule

_COPY = "%copy"  # behind the key of the second target; no name of a user holds it


def check_copies(
    index: SourceIndex,
    program: Program,
    source: AnySource,
    supplier: Callable[[Sequence[tuple[Stored, str]]], Supplier],
    comm: Comm,
    *,
    stats: Stats,
    prefer: Preference | None = None,
    pool: Executor | None = None,
) -> None:
    """Compare the copies of every tensor of which an inverse found several; all ranks call this.

    Raises:
        AoaError: AOA401 where two copies differ.
    """
    if not program.twins:
        return
    variables = {key: program.outputs[key] for key in program.twins}
    outputs = [o for o in outputs_of(index, variables, None) if not is_scalar(o.state)]
    readers = balanced({o.name: o.nbytes for o in outputs}, range(comm.size)) if outputs else {}
    mine = [o for o in outputs if readers[o.name] == comm.rank]
    with comm.together("planning"):
        plan = _plan(index, program, mine, prefer)
        supplied = supplier(plan.shards)
    batches = [[2 * n, 2 * n + 1] for n in range(len(mine))]
    schedule = make_schedule(plan, batches, supplied, comm)

    def empty(number: int) -> torch.Tensor:
        return torch.empty(mine[number // 2].shape, dtype=mine[number // 2].dtype)

    differ: str | None = None
    for batch in carry_out(schedule, empty, source, comm, stats, pool):
        first, second = sorted(batch)
        for copy in plan.of_target(second):
            a, b = destination(copy, batch[first]), destination(copy, batch[second])
            if not same_values(a, b):
                differ = mine[first // 2].name
    with comm.together("comparing copies"):
        if differ is not None:
            raise AoaError(
                "AOA401", f"{differ} has two values: the copies of it in the source differ"
            )


def _plan(
    index: SourceIndex, program: Program, outputs: Sequence[Output], prefer: Preference | None
) -> Plan:
    """For every output a target with its values, and one with those of the copies."""
    variables: dict[str, Variable] = {}
    targets = []
    for o in outputs:
        variable = program.outputs[o.key]
        variables[o.key] = variable
        variables[o.key + _COPY] = variable._replace(pieces=program.twins[o.key])
        regions = tuple(shard_regions((0,) * len(o.shape), o.shape))
        for key in (o.key, o.key + _COPY):
            targets.append(Target(key, o.state, o.shape, dtype_name(o.dtype), regions))
    return make_plan(index, targets, variables, prefer=prefer, cast=True, partial=True)
