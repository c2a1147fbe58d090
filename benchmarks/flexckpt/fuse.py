# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A Hugging Face folder into a tensor-parallel model with fused weights.

Two ranks, bfloat16. Query, key and value become one tensor, interleaved by group of heads; gate and
up become one. Ours says so in AOA; beside it stands the reader of torch DCP for Hugging Face
folders into DTensors, which are then put together in Python.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import flexckpt
from benchmarks.flexckpt.data import (
    FEED_FORWARD,
    HEADS,
    HIDDEN,
    KV_HEADS,
    llama,
    random_state,
    write_hugging_face,
)
from benchmarks.flexckpt.measure import Contender, ratios
from benchmarks.flexckpt.peers import dcp
from benchmarks.flexckpt.processes import on_ranks
from benchmarks.flexckpt.settings import Settings

HEAD = HIDDEN // HEADS
QKV = HIDDEN + 2 * KV_HEADS * HEAD
AOA = f"""
L.q_proj.weight, L.k_proj.weight, L.v_proj.weight -> L.qkv_proj.weight, \
fused_qkv, num_heads={HEADS}, num_key_value_groups={KV_HEADS}, axis=0
M.gate_proj.weight, M.up_proj.weight -> M.gate_up_proj.weight, fused_ffn, axis=0
"""
AOA = AOA.replace("L.", "model.layers.$LAYER_ID.self_attn.").replace(
    "M.", "model.layers.$LAYER_ID.mlp."
)

# How a tensor is cut: the axis, or None where every rank has all of it.
ROWS = ("q_proj", "k_proj", "v_proj", "qkv_proj", "gate_proj", "up_proj", "gate_up_proj")
COLUMNS = ("o_proj", "down_proj")


def axis_of(name: str) -> int | None:
    part = name.split(".")[-2]
    if part in ROWS or part in ("embed_tokens", "lm_head"):
        return 0
    return 1 if part in COLUMNS else None


def run(settings: Settings) -> dict[str, Any]:
    source = settings.workdir / "hf"
    write_hugging_face(source, random_state(llama(settings.size, 2), torch.bfloat16))
    rows = on_ranks(loads, settings)
    return {**rows, "times_as_long": ratios(rows, "ours", ["dcp_and_python"])}


def fused_shapes(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """The model's own names and shapes."""
    out = {}
    for name, shape in shapes.items():
        if name.endswith("q_proj.weight"):
            out[name.replace("q_proj", "qkv_proj")] = (QKV, HIDDEN)
        elif name.endswith("gate_proj.weight"):
            out[name.replace("gate_proj", "gate_up_proj")] = (2 * FEED_FORWARD, HIDDEN)
        elif not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight")):
            out[name] = shape
    return out


def local(name: str, shape: tuple[int, ...], ranks: int) -> tuple[int, ...]:
    axis = axis_of(name)
    return tuple(n // ranks if k == axis else n for k, n in enumerate(shape))


def loads(settings: Settings) -> dict[str, Contender]:
    """Both fill the same kind of model; the two models are compared once."""
    rank, ranks = dist.get_rank(), settings.ranks
    mesh = init_device_mesh("cpu", (ranks,))
    shapes = llama(settings.size, 2).shapes
    targets = {}
    for name, shape in fused_shapes(shapes).items():
        axis, part = axis_of(name), local(name, shape, ranks)
        offset = tuple(rank * n if k == axis else 0 for k, n in enumerate(part))
        tensor = torch.zeros(part, dtype=torch.bfloat16)
        targets[name] = flexckpt.Shard(name, tensor, shape, offset)
    model = {name: torch.zeros_like(target.tensor) for name, target in targets.items()}
    source = settings.workdir / "hf"

    def dcp_and_python() -> None:
        parts = {name: empty(name, shape, mesh) for name, shape in shapes.items()}
        dcp.load_hugging_face(parts, source)
        fuse_into(model, {name: part.to_local() for name, part in parts.items()})

    def ours() -> None:
        flexckpt.load(targets, source, aoa=AOA)

    ours()
    dcp_and_python()
    for name, tensor in model.items():
        if not torch.equal(tensor, targets[name].tensor):
            raise RuntimeError(f"{name} differs between the two ways")
    return {"ours": Contender(ours), "dcp_and_python": Contender(dcp_and_python)}


def empty(name: str, shape: tuple[int, ...], mesh: Any) -> DTensor:
    axis = axis_of(name)
    tensor = torch.empty(local(name, shape, mesh.size()), dtype=torch.bfloat16)
    return DTensor.from_local(
        tensor, mesh, [Replicate() if axis is None else Shard(axis)], run_check=False
    )


def fuse_into(model: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Puts a rank's parts into its fused model."""
    for name, target in model.items():
        if name.endswith("qkv_proj.weight"):
            groups = target.shape[0] * KV_HEADS // QKV
            names = [name.replace("qkv_proj", f"{letter}_proj") for letter in "qkv"]
            qkv = [parts[name].view(groups, -1, HIDDEN) for name in names]
            torch.cat(qkv, 1, out=target.view(groups, -1, HIDDEN))
        elif name.endswith("gate_up_proj.weight"):
            both = [parts[name.replace("gate_up_proj", f"{word}_proj")] for word in ("gate", "up")]
            torch.cat(both, out=target)
        else:
            target.copy_(parts[name])
