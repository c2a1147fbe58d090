# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Targets that share their memory, as tied weights do: what they take must be the same."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from flexckpt.errors import LayoutError
from flexckpt.model import Shard, same_values
from flexckpt.states import join_name


class Tied:
    """Shards of which those that lie where another one does have got memory of their own.

    Attributes:
        shards: what is to be filled.
    """

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards: list[Shard] = []
        self._pairs: list[tuple[Shard, Shard]] = []
        first: dict[object, Shard] = {}
        for shard in shards:
            t = shard.tensor
            place = t.device, t.data_ptr(), t.shape, t.stride(), t.dtype
            owner = first.setdefault(place, shard) if t.numel() else shard
            if owner is not shard:
                shard = replace(shard, tensor=torch.empty_like(t))
                self._pairs.append((owner, shard))
            self.shards.append(shard)

    def check(self) -> None:
        """Compare what came for the same memory.

        Raises:
            LayoutError: LAY102 where it differs.
        """
        for owner, other in self._pairs:
            if not same_values(owner.tensor, other.tensor):
                names = [join_name(s.key, s.state) for s in (other, owner)]
                raise LayoutError(
                    "LAY102", f"{names[0]!r} and {names[1]!r} share their memory, but not values"
                )
