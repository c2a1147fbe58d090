# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writing the whole tensors that a program makes: the engine of convert, and of mapped saves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

import torch

from flexckpt.boxes import shard_regions
from flexckpt.comm.group import Comm
from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.execute import AnySource, Stats
from flexckpt.index import SourceIndex, Stored
from flexckpt.io.sinks import Output, Sink
from flexckpt.model import dtype_name
from flexckpt.pieces import Variable
from flexckpt.plan.cover import Preference
from flexckpt.plan.planner import make_plan
from flexckpt.plan.readers import balanced
from flexckpt.plan.targets import Target
from flexckpt.shared_folder import shared_folder
from flexckpt.states import STAND_INS, STATES, WEIGHT, is_scalar
from flexckpt.transfer import Supplier, carry_out, make_schedule, split_batches

BATCH_BYTES = 8 << 20  # of outputs that are filled together: they stay in the cache

Progress = Callable[[int, int, str], object]  # bytes done, bytes in all, name


def outputs_of(
    index: SourceIndex, variables: Mapping[str, Variable], states: Sequence[str] | None
) -> list[Output]:
    """What a program makes of a source: every variable in every state that its sources have.

    Args:
        index: the source.
        variables: the evaluated program.
        states: which states; all that there are if None.
    """
    known = dict.fromkeys((*STATES, *(state for _, state in index.entries)))
    outputs = []
    for key, variable in variables.items():
        sources = dict.fromkeys(p.source for p in variable.pieces if p.source is not None)
        for state in known if states is None else states:
            found = [index.entries.get((source, state)) for source in sources]
            if state == WEIGHT and (not sources or not any(found)):
                lender = [index.entries.get((source, STAND_INS[WEIGHT])) for source in sources]
                if sources and not any(lender):
                    continue
                outputs.append(_weight(key, variable))
            elif entry := next((e for e in found if e is not None), None):
                if state == WEIGHT:
                    outputs.append(_weight(key, variable))
                else:
                    shape = entry.shape if is_scalar(state) else variable.shape
                    outputs.append(Output(key, state, shape, entry.dtype))
    if variables and not outputs:
        asked = "any state" if states is None else ", ".join(states)
        raise FlexckptError("ARG101", f"no tensor of the source has what is asked for: {asked}")
    return outputs


def _weight(key: str, variable: Variable) -> Output:
    return Output(key, WEIGHT, variable.shape, getattr(torch, variable.dtype))


def export(
    index: SourceIndex,
    variables: Mapping[str, Variable],
    outputs: Sequence[Output],
    source: AnySource,
    supplier: Callable[[Sequence[tuple[Stored, str]]], Supplier],
    sink: Sink,
    path: Path,
    comm: Comm,
    *,
    stats: Stats,
    prefer: Preference | None = None,
    pool: Executor | None = None,
    progress: Progress | None = None,
) -> None:
    """Write outputs into a new folder, which then takes the place of ``path`` in one step.

    Args:
        index: what the source holds.
        variables: the evaluated program.
        outputs: what to write; the same on all ranks.
        source: the shards that this rank supplies.
        supplier: shards of a plan -> the rank that supplies each.
        sink: the layout.
        path: where the checkpoint is to stand.
        comm: the ranks that write together.
        stats: gets the bytes that were read, sent, received and written.
        prefer: rank of a shard among its replicas, the least is read.
        pool: threads for reading.
        progress: is told of every output of this rank that was filled.
    """
    writers = balanced({o.name: o.nbytes for o in outputs}, range(comm.size)) if outputs else {}
    mine = [o for o in outputs if writers[o.name] == comm.rank]
    batches = split_batches([o.nbytes for o in mine], BATCH_BYTES)
    buffers = _Buffers(mine, batches)
    with comm.together("planning"):
        targets = [_target(o, buffers.places[n][1]) for n, o in enumerate(mine)]
        plan = make_plan(index, targets, variables, prefer=prefer)
        supplied = supplier(plan.shards)
    schedule = make_schedule(plan, batches, supplied, comm)
    with shared_folder(path, comm) as folder:
        leaders = sum(comm.gather(folder.leads))
        with comm.together("preparing files"):
            if leaders > 1 and not sink.own_disks:
                raise CheckpointError(
                    "CKP108",
                    f"{path} cannot be written in this layout: not all ranks see the same folder "
                    "there",
                )
            if folder.leads:
                sink.begin(folder.partial)

        def stream() -> Iterator[list[tuple[Output, torch.Tensor]]]:
            done, total = 0, sum(o.nbytes for o in mine)
            trouble: Exception | None = None
            for batch in carry_out(schedule, buffers, source, comm, stats, pool):
                yield [(mine[n], tensor) for n, tensor in batch.items()]
                for n in batch:
                    done += mine[n].nbytes
                    stats.written += mine[n].nbytes
                    if progress is None or trouble is not None:
                        continue
                    try:
                        progress(done, total, mine[n].name)
                    except Exception as error:  # the other ranks wait for what this one supplies
                        trouble = error
            if trouble is not None:
                raise trouble

        records = None
        with comm.together("writing tensors"):
            batches_of_tensors = stream()
            try:
                records = sink.write(folder.partial, comm.rank, mine, batches_of_tensors)
            finally:  # where writing failed, the other ranks still wait for what this one supplies
                for _ in batches_of_tensors:
                    pass
        everyone = comm.gather(records)
        with comm.together("writing the index"):
            if folder.leads:
                sink.finish(folder.partial, everyone)


def _target(output: Output, start: int) -> Target:
    """An output whose elements lie in C order from a byte of its area on."""
    shape = tuple(output.shape)
    regions = tuple(shard_regions((0,) * len(shape), shape, base=start // output.dtype.itemsize))
    return Target(output.key, output.state, shape, dtype_name(output.dtype), regions)


class _Buffers:
    """Memory for outputs: one area is filled while the other is written."""

    def __init__(self, outputs: Sequence[Output], batches: Sequence[Sequence[int]]) -> None:
        self.outputs = outputs
        self.places: dict[int, tuple[int, int]] = {}
        self.sizes = [0, 0]
        for number, batch in enumerate(batches):
            at = 0
            for n in batch:
                self.places[n] = number % 2, at
                at += outputs[n].nbytes
                at += -at % 64
            self.sizes[number % 2] = max(self.sizes[number % 2], at)
        self.areas: list[torch.Tensor] = []

    def __call__(self, number: int) -> torch.Tensor:
        if not self.areas:  # only now: before there was a plan nobody knew that the source is whole
            self.areas = [torch.empty(size, dtype=torch.uint8) for size in self.sizes]
        output = self.outputs[number]
        area, at = self.places[number]
        data = self.areas[area][at : at + output.nbytes]
        return data.view(output.dtype).view(output.shape)
