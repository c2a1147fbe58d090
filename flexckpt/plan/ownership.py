# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which rank writes which shard, and whether the shards of all ranks are whole tensors."""

from collections import defaultdict
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from flexckpt.errors import LayoutError
from flexckpt.index import Entry, Stored
from flexckpt.plan.cover import Cover
from flexckpt.plan.readers import constrained
from flexckpt.states import join_name


class Held(NamedTuple):
    """A shard that a rank holds, without its data."""

    key: str
    state: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat_range: tuple[int, int] | None
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        flat = self.flat_range
        count = prod(self.shape) if flat is None else flat[1] - flat[0]
        return count * self.dtype.itemsize

    @property
    def name(self) -> str:
        return join_name(self.key, self.state)


def assign_writers(ranks: Sequence[Sequence[Held]]) -> dict[Held, int]:
    """The rank that writes each distinct shard: all write about equally many bytes.

    Args:
        ranks: what every rank holds.

    Raises:
        LayoutError: LAY105 where ranks contradict one another, or together do not hold a tensor
            exactly once.
    """
    holders: dict[Held, list[int]] = defaultdict(list)
    for rank, held in enumerate(ranks):
        for shard in held:
            if not holders[shard] or holders[shard][-1] != rank:
                holders[shard].append(rank)
    check_whole(holders)
    names = {
        shard: (shard.name, shard.offset, shard.shape, shard.flat_range or ()) for shard in holders
    }
    chosen = constrained({names[s]: (s.nbytes, r) for s, r in holders.items()})
    return {shard: chosen[names[shard]] for shard in holders}


def check_whole(shards: Sequence[Held] | dict[Held, list[int]]) -> None:
    """Raise unless the shards of every tensor agree on it and hold every element."""
    tensors: dict[tuple[str, str], list[Held]] = defaultdict(list)
    for shard in shards:
        tensors[shard.key, shard.state].append(shard)
    for group in tensors.values():
        first = group[0]
        for other in group[1:]:
            if other.global_shape != first.global_shape or other.dtype != first.dtype:
                raise LayoutError(
                    "LAY105",
                    f"{first.name!r} is held as {first.dtype} of shape {first.global_shape} and as "
                    f"{other.dtype} of shape {other.global_shape}",
                )
        if first.flat_range is None and first.shape == first.global_shape:
            continue
        stored = [Stored(s.offset, s.shape, s.flat_range, 0, 0) for s in group]
        entry = Entry(first.key, first.state, first.global_shape, first.dtype, stored)
        held = sum(region.box.numel for region, _ in Cover(entry).parts)
        if held != prod(first.global_shape):
            raise LayoutError(
                "LAY105",
                f"{first.name!r}: the ranks together hold {held} of its {prod(first.global_shape)} "
                f"elements",
            )
