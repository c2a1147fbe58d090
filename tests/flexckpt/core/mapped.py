# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A small mixture of experts, its layers and experts on different ranks, and a mapping of it."""

from collections.abc import Mapping

import torch

from flexckpt import Shard

LAYERS, EXPERTS = 3, 4
MAPPING = [
    "model.layers.$LAYER_ID.q, model.layers.$LAYER_ID.k, model.layers.$LAYER_ID.v"
    " -> layers.$LAYER_ID.qkv, axis=0",
    "model.experts.*.up -> experts.up, axis=0",
    "model.embed^T -> embed",
    "model.norm -> norm, dtype='bfloat16'",
]
Tensors = dict[str, torch.Tensor]


def source(salt: int = 0) -> Tensors:
    """All tensors, by flat name."""
    random = torch.Generator().manual_seed(salt)
    shapes: dict[str, tuple[int, ...]] = {"model.embed": (9, 6), "model.norm": (6,)}
    for n in range(LAYERS):
        shapes |= {f"model.layers.{n}.{x}": (rows, 6) for x, rows in (("q", 7), ("k", 3), ("v", 3))}
    shapes |= {f"model.experts.{n}.up": (2, 5) for n in range(EXPERTS)}
    out = {}
    for key, shape in shapes.items():
        out[key] = torch.randn(shape, generator=random)
        out[f"{key}@exp_avg"] = torch.randn(shape, generator=random)
        out[f"{key}@step"] = torch.tensor(5.0 + salt)
    return out


def expected(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """What the mapping makes of them, with torch alone."""
    out = {}
    for state in ("", "@exp_avg"):
        for n in range(LAYERS):
            parts = [tensors[f"model.layers.{n}.{x}{state}"] for x in "qkv"]
            out[f"layers.{n}.qkv{state}"] = torch.cat(parts)
        experts = [tensors[f"model.experts.{n}.up{state}"] for n in range(EXPERTS)]
        out[f"experts.up{state}"] = torch.cat(experts)
        out[f"embed{state}"] = tensors[f"model.embed{state}"].t().contiguous()
        out[f"norm{state}"] = tensors[f"model.norm{state}"]
    out["norm"] = out["norm"].bfloat16()
    steps = {f"{name}@step": tensors["model.norm@step"] for name in out if "@" not in name}
    return out | steps


def held(rank: int, size: int, salt: int = 0, *, states: bool = True) -> list[Shard]:
    """What a rank holds: its layers, its experts, a flattened part of the rest."""
    shards = []
    for name, tensor in source(salt).items():
        key, _, state = name.partition("@")
        state = state or "weight"
        if not states and state != "weight":
            continue
        number = int(key.split(".")[2]) if key.count(".") > 1 else None
        shape = tuple(tensor.shape)
        zero = (0,) * tensor.ndim
        if number is None and state != "step":
            flat, n = tensor.flatten(), tensor.numel()
            a, b = rank * n // size, (rank + 1) * n // size
            shards.append(Shard(key, flat[a:b].clone(), shape, zero, shape, (a, b), state))
        elif number is None or number % size == rank:
            shards.append(Shard(key, tensor.clone(), shape, zero, state=state))
    return shards


def columns(rank: int, size: int) -> list[Shard]:
    """Targets: every tensor of the result cut along its last axis, in strided memory."""
    shards = []
    for name, tensor in expected(source()).items():
        key, _, state = name.partition("@")
        shape = tuple(tensor.shape)
        a, b = 0, 0
        local = torch.zeros_like(tensor)
        if tensor.ndim:
            a, b = (r * shape[-1] // size for r in (rank, rank + 1))
            local = torch.zeros(*shape[:-1], b - a, 2, dtype=tensor.dtype)[..., 0]
        offset = (0,) * (tensor.ndim - 1) + (a,) * min(tensor.ndim, 1)
        shards.append(Shard(key, local, shape, offset, state=state or "weight"))
    return shards


def wrong_columns(shards: list[Shard], salt: int = 0) -> list[str]:
    """Names of targets that are not as they should be."""
    want = expected(source(salt))
    bad = []
    for s in shards:
        name = s.key if s.state == "weight" else f"{s.key}@{s.state}"
        full = want[name]
        if full.ndim:
            full = full[..., s.offset[-1] : s.offset[-1] + s.tensor.shape[-1]]
        if not torch.equal(full, s.tensor):
            bad.append(name)
    return bad
