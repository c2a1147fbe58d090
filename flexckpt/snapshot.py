# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Copies of shards in host memory, taken while training waits and written while it goes on."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from flexckpt.model import Shard

_kept: list[torch.Tensor] = []


def snapshot(shards: Sequence[Shard]) -> list[Shard]:
    """The shards with copies of their data in host memory.

    The memory is kept between calls, because the system takes long to hand out fresh pages; the
    copies of one call are valid until the next.
    """
    starts, total = [], 0
    for shard in shards:
        starts.append(total)
        total += shard.tensor.numel() * shard.tensor.dtype.itemsize
        total += -total % 64
    area = _area(total, pinned=any(s.tensor.is_cuda for s in shards))
    copies = []
    for shard, start in zip(shards, starts, strict=True):
        tensor = shard.tensor
        data = area[start : start + tensor.numel() * tensor.dtype.itemsize]
        host = data.view(tensor.dtype).view(tensor.shape)
        host.copy_(tensor.detach(), non_blocking=True)
        copies.append(replace(shard, tensor=host))
    if any(s.tensor.is_cuda for s in shards):
        torch.cuda.synchronize()
    return copies


def _area(size: int, *, pinned: bool) -> torch.Tensor:
    if not _kept or _kept[0].numel() < size or (pinned and not _kept[0].is_pinned()):
        _kept.clear()
        _kept.append(torch.empty(size, dtype=torch.uint8, pin_memory=pinned))
    return _kept[0]


def release_memory() -> None:
    """Free the host memory that is kept for snapshots."""
    _kept.clear()
