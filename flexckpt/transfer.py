# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Filling targets from shards that other ranks hold or see, together with those of this rank.

Receivers ask: a rank plans its own targets and tells every supplier once, in order, which messages
it wants. Targets are filled in batches, so that little is in flight at any time.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from math import prod

import torch

from flexckpt.comm.group import Comm
from flexckpt.errors import TransferError
from flexckpt.execute import (
    AnySource,
    FileSource,
    Stats,
    Wanted,
    landing,
    put,
    run_copies,
    settle_scalars,
    wanted,
)
from flexckpt.plan.copies import Copy
from flexckpt.plan.planner import Plan

BATCH_BYTES = 256 << 20  # of the targets of a rank that are filled together
MESSAGE_BYTES = 32 << 20  # of one message between two ranks
ALIGNMENT = 16  # bytes, of every copy in a message
_GOOD, _BAD = 0, 1  # the last byte of a message: whether the others are what was asked for

Supplier = Callable[[int], int]  # shard of the plan -> the rank that reads or holds it


def split_batches(sizes: Sequence[int], limit: int = BATCH_BYTES) -> list[list[int]]:
    """Consecutive numbers whose sizes sum to at most ``limit``, or one number alone."""
    batches: list[list[int]] = []
    total = 0
    for number, size in enumerate(sizes):
        if not batches or total + size > limit:
            batches.append([])
            total = 0
        batches[-1].append(number)
        total += size
    return batches


@dataclass(slots=True)
class Schedule:
    """What one rank does, batch by batch. Made once for a plan; it can be carried out many times.

    Attributes:
        plan: of this rank's targets.
        batches: numbers of the targets that are filled together.
        local: per batch, copies that this rank carries out by itself.
        receives: per batch, supplier -> messages -> the copies each brings.
        sends: per batch, receiver -> messages -> what each carries.
    """

    plan: Plan
    batches: list[list[int]]
    local: list[list[Copy]]
    receives: list[dict[int, list[list[Copy]]]]
    sends: list[dict[int, list[list[Wanted]]]] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        return max(len(self.batches), len(self.sends))


def make_schedule(
    plan: Plan, batches: Sequence[Sequence[int]], supplier: Supplier, comm: Comm
) -> Schedule:
    """Decide who supplies what, and tell the suppliers. Every rank of ``comm`` calls this.

    Args:
        plan: of this rank's targets.
        batches: numbers of its targets that are filled together. Batches of one number happen at
            the same time on all ranks.
        supplier: the rank from which a shard of the plan comes.
        comm: the ranks.
    """
    schedule = Schedule(plan, [list(b) for b in batches], [], [])
    asked: list[list[list[list[Wanted]]]] = [[] for _ in range(comm.size)]
    for batch in schedule.batches:
        local: list[Copy] = []
        remote: dict[int, _Messages] = {}
        for number in batch:
            for copy in plan.of_target(number):
                rank = comm.rank if copy.shard < 0 else supplier(copy.shard)
                if rank == comm.rank:
                    local.append(copy)
                else:
                    remote.setdefault(rank, _Messages(plan)).add(copy)
        schedule.local.append(local)
        schedule.receives.append({rank: m.messages for rank, m in sorted(remote.items())})
        for rank in range(comm.size):
            messages = remote[rank].messages if rank in remote else []
            asked[rank].append([[wanted(plan, copy) for copy in m] for m in messages])
    answers = comm.trade([pickle.dumps(a) if any(a) else b"" for a in asked])
    for receiver, answer in enumerate(answers):
        if not answer or receiver == comm.rank:
            continue
        for number, messages in enumerate(pickle.loads(answer)):  # from a rank of this job
            while len(schedule.sends) <= number:
                schedule.sends.append({})
            if messages:
                schedule.sends[number][receiver] = messages
    return schedule


class _Messages:
    """Copies from one supplier, cut into messages of limited size."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.messages: list[list[Copy]] = []
        self.total = 0

    def add(self, copy: Copy) -> None:
        size = getattr(torch, self.plan.shards[copy.shard][1]).itemsize
        for part in copy.chunks(MESSAGE_BYTES // size):
            length = part.numel * size
            if not self.messages or self.total + length > MESSAGE_BYTES:
                self.messages.append([])
                self.total = 0
            self.messages[-1].append(part)
            self.total += length


def carry_out(
    schedule: Schedule,
    tensors: Mapping[int, torch.Tensor] | Callable[[int], torch.Tensor],
    source: AnySource,
    comm: Comm,
    stats: Stats,
    pool: Executor | None = None,
) -> Iterator[dict[int, torch.Tensor]]:
    """Fill the targets of a schedule; yields those of a batch when they are full.

    Every rank of the schedule must run this to its end.

    Args:
        schedule: what to do.
        tensors: the targets by number, or a function that makes one when its batch begins.
        source: the shards that this rank supplies.
        comm: the ranks.
        stats: gets the bytes that were read, sent and received.
        pool: threads for the work of this rank.

    Raises:
        TransferError: NET101 if another rank failed. All ranks learn of a failure at the end.
    """
    make = tensors if callable(tensors) else tensors.__getitem__
    with comm.together("moving tensors"):
        failure: Exception | None = None
        for number in range(schedule.rounds):
            numbers = schedule.batches[number] if number < len(schedule.batches) else []
            filled: dict[int, torch.Tensor] = {}
            landed: dict[int, torch.Tensor] | None = None
            try:
                filled = {n: make(n) for n in numbers}
                landed = landing(schedule.plan, numbers, filled)
                if failure is None and numbers:
                    run_copies(schedule.plan, schedule.local[number], landed, source, stats, pool)
            except TransferError:
                raise
            except Exception as error:  # the others still wait for messages: go on, tell them later
                failure = failure or error
            failure = _messages(schedule, number, landed, source, comm, stats) or failure
            if isinstance(source, FileSource):
                source.files.forget()
            if failure is None and landed is not None:
                try:
                    settle_scalars(schedule.plan, landed, filled)
                    if numbers:
                        yield filled
                except Exception as error:
                    failure = error
        if failure is not None:
            raise failure


def _messages(
    schedule: Schedule,
    number: int,
    landed: Mapping[int, torch.Tensor] | None,
    source: AnySource,
    comm: Comm,
    stats: Stats,
) -> Exception | None:
    """The messages of one batch; what went wrong on this rank."""
    receives = schedule.receives[number] if number < len(schedule.receives) else {}
    sends = schedule.sends[number] if number < len(schedule.sends) else {}
    failure: Exception | None = None
    lengths = [len(m) for m in receives.values()] + [len(m) for m in sends.values()]
    for step in range(max(lengths, default=0)):
        incoming: list[tuple[int, list[Copy], tuple[list[int], int]]] = []
        for peer, messages in receives.items():
            if step < len(messages):
                wants = [wanted(schedule.plan, copy) for copy in messages[step]]
                incoming.append((peer, messages[step], _layout(wants)))
        outgoing = []
        for peer, asked in sends.items():
            if step < len(asked):
                views, total = _layout(asked[step])
                box = torch.empty(total + 1, dtype=torch.uint8)
                box[total] = _GOOD
                try:
                    for want, start in zip(asked[step], views, strict=True):
                        _slot(box, want, start).copy_(source.view(want))
                        if isinstance(source, FileSource):
                            stats.read += prod(want.extents) * _itemsize(want)
                except Exception as error:  # the receiver waits: it gets garbage, and is told
                    failure = failure or error
                    box[total] = _BAD
                outgoing.append((peer, box))
                stats.sent += total
        boxes = [torch.empty(total + 1, dtype=torch.uint8) for _, _, (_, total) in incoming]
        comm.exchange(
            outgoing, [(peer, box) for (peer, _, _), box in zip(incoming, boxes, strict=True)]
        )
        for (peer, copies, (starts, total)), box in zip(incoming, boxes, strict=True):
            stats.received += total
            if box[total] != _GOOD:
                text = f"rank {peer} failed while supplying tensors to rank {comm.rank}"
                failure = failure or TransferError("NET101", text)
                continue
            if landed is None:
                continue
            for copy, start in zip(copies, starts, strict=True):
                try:
                    values = _slot(box, wanted(schedule.plan, copy), start)
                    put(copy, landed[copy.target], values)
                except Exception as error:
                    failure = failure or error
    return failure


def _itemsize(want: Wanted) -> int:
    size: int = getattr(torch, want.dtype).itemsize
    return size


def _layout(wants: Sequence[Wanted]) -> tuple[list[int], int]:
    """The first byte of each copy in a message, and the length of the message."""
    starts, at = [], 0
    for want in wants:
        starts.append(at)
        at += prod(want.extents) * _itemsize(want)
        at += -at % ALIGNMENT
    return starts, at


def _slot(box: torch.Tensor, want: Wanted, start: int) -> torch.Tensor:
    """The part of a message that a copy occupies, in C order of its extents."""
    length = prod(want.extents) * _itemsize(want)
    return box[start : start + length].view(getattr(torch, want.dtype)).view(want.extents)
