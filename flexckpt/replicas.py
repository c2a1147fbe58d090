# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Targets that several ranks of one machine hold: one fills each and gives it to the others."""

from collections import defaultdict
from collections.abc import Sequence

import torch
import xxhash

from flexckpt.boxes import c_strides
from flexckpt.comm.group import Comm
from flexckpt.execute import MemorySource, Stats
from flexckpt.index import Stored
from flexckpt.model import Shard, dtype_name
from flexckpt.plan.copies import Copy, merge_dims
from flexckpt.plan.planner import Plan
from flexckpt.plan.readers import balanced
from flexckpt.states import join_name
from flexckpt.transfer import carry_out, make_schedule, split_batches


def suppliers_of(shards: Sequence[Shard], comm: Comm) -> list[int]:
    """For every shard the rank of this machine that fills it; every rank of ``comm`` calls this.

    Shards that the same ranks hold are shared out among them so that all fill equally many bytes.
    """
    node = comm.node()
    if len(node) == 1:
        return [comm.rank] * len(shards)
    names = [_digest(shard) for shard in shards]
    text = b"".join(name.to_bytes(8, "little") for name in names)
    told = comm.trade([text if rank in node else b"" for rank in range(comm.size)])
    holders: dict[int, list[int]] = defaultdict(list)
    for rank in node:
        digests = memoryview(told[rank])
        for name in dict.fromkeys(digests.cast("Q") if len(digests) else ()):
            holders[name].append(rank)
    groups: dict[tuple[int, ...], dict[int, int]] = defaultdict(dict)
    for name, shard in zip(names, shards, strict=True):
        groups[tuple(holders[name])][name] = shard.tensor.numel() * shard.tensor.dtype.itemsize
    chosen: dict[int, int] = {}
    for ranks, sizes in groups.items():
        chosen.update(balanced(sizes, ranks))
    return [chosen[name] for name in names]


def _digest(shard: Shard) -> int:
    box = shard.key, shard.state, shard.offset, shard.local_shape, shard.flat_range
    return xxhash.xxh3_64_intdigest(repr((*box, shard.tensor.dtype)).encode())


def share(shards: Sequence[Shard], suppliers: Sequence[int], comm: Comm, stats: Stats) -> None:
    """Give every rank the shards that another filled for it; all ranks of ``comm`` call this."""
    plan = Plan()
    targets: dict[int, torch.Tensor] = {}
    for shard, supplier in zip(shards, suppliers, strict=True):
        if supplier != comm.rank and shard.tensor.numel():
            _take(plan, len(targets), shard, supplier)
            targets[len(targets)] = shard.tensor
    batches = split_batches([t.numel() * t.dtype.itemsize for t in targets.values()])
    schedule = make_schedule(plan, batches, lambda k: plan.shards[k][0].file, comm)
    source = MemorySource({_digest(shard): shard.tensor for shard in shards})
    for _ in carry_out(schedule, targets, source, comm, stats):
        pass


def _take(plan: Plan, number: int, shard: Shard, rank: int) -> None:
    """Add the copy of a shard from the rank that holds the same, where its digest names it."""
    tensor = shard.tensor
    shape = tuple(tensor.shape)
    steps = zip(tensor.stride(), c_strides(shape), shape, strict=True)
    extents, src, dst = merge_dims([step for step in steps if step[2] > 1])
    stored = Stored((0,) * len(shape), shape, None, rank, _digest(shard))
    plan.shards.append((stored, dtype_name(tensor.dtype)))
    plan.copies.append(Copy(number, number, extents, src, dst, 0, int(tensor.storage_offset())))
    plan.ends.append(len(plan.copies))
    plan.names.append(join_name(shard.key, shard.state))
