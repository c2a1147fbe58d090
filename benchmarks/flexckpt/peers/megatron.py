# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Megatron-Core's dist_checkpointing (torch_dist), on CPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def prepare() -> None:
    """Answers what Megatron asks of a GPU although all tensors are on the CPU."""
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: torch.device("cpu")
        torch.cuda.synchronize = lambda *args: None


def described(state: dict[str, DTensor]) -> dict[str, Any]:
    """Megatron's own description of tensors that are cut along one axis over all ranks."""
    from megatron.core.dist_checkpointing import ShardedTensor

    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {
        name: ShardedTensor.from_rank_offsets(
            name, tensor.to_local(), (tensor.placements[0].dim, rank, ranks)
        )
        for name, tensor in state.items()
    }


def save(state: dict[str, DTensor], folder: Path) -> None:
    from megatron.core import dist_checkpointing

    folder.mkdir(exist_ok=True)
    dist_checkpointing.save(described(state), str(folder))


def load(state: dict[str, DTensor], folder: Path) -> dict[str, Any]:
    """New tensors; the state tells how they are cut."""
    from megatron.core import dist_checkpointing

    loaded: dict[str, Any] = dist_checkpointing.load(described(state), str(folder))
    return loaded
