# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the ranks of the tests of distributed checkpoints do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from flexckpt.io.dcp_writer import write_metadata, write_rank_file


def globals_of_the_test() -> dict[str, torch.Tensor]:
    """Tensors of odd sizes and every kind, the same on every rank."""
    torch.manual_seed(1)
    return {
        "rows": torch.randn(5, 3),
        "columns": torch.randn(3, 5).bfloat16(),
        "short": torch.arange(1.0, 2.0),
        "replicated": torch.randn(2, 2, 2),
        "plain": torch.arange(6).reshape(2, 3).t(),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
    }


_PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "short": Shard(0), "replicated": Replicate()}


def sharded() -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    tensors = globals_of_the_test()
    return {
        name: distribute_tensor(tensor, mesh, [_PLACEMENTS[name]])
        if name in _PLACEMENTS
        else tensor
        for name, tensor in tensors.items()
    }


def save_sharded(path: Path) -> None:
    settings = {"step": 7, "betas": (0.9, 0.95), "name": "tiny", "odd": {1, 2}}
    dcp.save({"model": sharded(), "settings": settings}, checkpoint_id=path)


def save_as_safetensors(path: Path) -> None:
    writer = dcp.FileSystemWriter(path, serialization_format=SerializationFormat.SAFETENSORS)
    names = ("rows", "columns", "flags", "scalar")
    state = {name: tensor for name, tensor in sharded().items() if name in names}
    dcp.save({**state, "step": 7}, storage_writer=writer)


def save_by_rank(path: Path) -> None:
    """Every rank writes its own metadata."""
    dcp.save(sharded(), storage_writer=dcp.FileSystemWriter(path), use_collectives=False)


def save_training(path: Path, flatten: bool) -> dict[str, dict[str, torch.Tensor]]:
    """A step of FSDP2 and AdamW is saved; the full tensors by key and state."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 1)
    )
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)
    weights, states = get_state_dict(model, optimizer, options=options)
    state = {**weights, **states} if flatten else {"model": weights, "optim": states}
    dcp.save(state, checkpoint_id=path)
    out = {name: {"weight": full(tensor)} for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        out[name].update({s: full(t) for s, t in optimizer.state[parameter].items()})
    return out


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def write_ours(path: Path) -> None:
    """Shards of the tensors are written by our writer, with a replica on every rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    shards = []
    for name, tensor in globals_of_the_test().items():
        offset = [0] * tensor.dim()
        part = tensor
        if name in ("rows", "columns"):
            axis = 0 if name == "rows" else 1
            step = -(-tensor.shape[axis] // world)
            offset[axis] = min(rank * step, tensor.shape[axis])
            part = tensor.narrow(axis, offset[axis], min(step, tensor.shape[axis] - offset[axis]))
        shards.append((name, tensor.shape, offset, part))
    records = write_rank_file(path, rank, shards, {"step": 7} if rank == 0 else None)
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, records)
    if rank == 0:
        write_metadata(path, [record for part in gathered for record in part])
    dist.barrier()


def load_with_torch(path: Path) -> Mapping[str, torch.Tensor]:
    """torch's own load into other shards; the full tensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = {}
    for name, tensor in globals_of_the_test().items():
        if tensor.dim() > 1:
            state[name] = distribute_tensor(
                torch.zeros_like(tensor), mesh, [Shard(tensor.dim() - 1)]
            )
        else:
            state[name] = torch.zeros_like(tensor)
    state["step"] = None
    dcp.load(state, checkpoint_id=path)
    assert state.pop("step") == 7
    return {name: full(tensor) for name, tensor in state.items()}
