# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the ranks of a group hold in memory, as a source index: the files are the ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flexckpt.comm.group import Comm
from flexckpt.execute import MemorySource
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.model import Shard
from flexckpt.plan.cover import Preference
from flexckpt.plan.ownership import Held, check_whole
from flexckpt.transfer import Supplier


def held(shard: Shard) -> Held:
    """A shard without its data."""
    return Held(
        shard.key,
        shard.state,
        tuple(shard.global_shape),
        tuple(shard.offset),
        tuple(shard.local_shape or ()),
        shard.flat_range,
        shard.tensor.dtype,
    )


def memory_index(shards: Sequence[Shard], comm: Comm) -> SourceIndex:
    """The shards of all ranks; every rank of ``comm`` calls this.

    Raises:
        LayoutError: LAY105 where ranks contradict one another, or hold only a part of a tensor.
    """
    return index_of([held(shard) for shard in shards], comm)


def index_of(mine: Sequence[Held], comm: Comm) -> SourceIndex:
    """The index of descriptions of shards; the position of a shard is its number on its rank."""
    everyone = comm.gather(list(mine))
    check_whole([h for theirs in everyone for h in theirs])
    entries: dict[tuple[str, str], Entry] = {}
    for rank, theirs in enumerate(everyone):
        for slot, h in enumerate(theirs):
            entry = entries.get((h.key, h.state))
            if entry is None:
                entry = Entry(h.key, h.state, h.global_shape, h.dtype, [])
                entries[h.key, h.state] = entry
            entry.shards.append(Stored(h.offset, h.shape, h.flat_range, rank, slot))
    ranks = [Path(f"rank {rank}") for rank in range(comm.size)]
    return SourceIndex("memory", Path("memory"), ranks, entries)


def memory_source(shards: Sequence[Shard]) -> MemorySource:
    """The shards of this rank, by the numbers that :func:`memory_index` gives them."""
    return MemorySource({n: shard.tensor.detach() for n, shard in enumerate(shards)})


def supplier_in_memory(
    comm: Comm,
) -> tuple[Preference, Callable[[Sequence[tuple[Stored, str]]], Supplier]]:
    """Which replica a rank prefers (its own, else not the same for all), and who holds it."""

    def prefer(stored: Stored) -> int:
        return (stored.file - comm.rank) % comm.size

    def supplier(shards: Sequence[tuple[Stored, str]]) -> Supplier:
        ranks = [stored.file for stored, _ in shards]
        return ranks.__getitem__

    return prefer, supplier
