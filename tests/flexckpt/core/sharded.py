# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A state dict that is held in every way there is, on the ranks of a job, and its whole tensors."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as On

from flexckpt import Shard

SHAPES: dict[str, tuple[int, ...]] = {
    "rows": (7, 5),
    "columns": (3, 10),
    "block": (9, 6),
    "thin": (2, 3),
    "plain": (4, 3),
    "flat": (5, 7),
    "several": (12, 4),
    "bias": (11,),
    "cube": (3, 4, 5),
    "none": (0, 4),
    "value": (),
}
DTYPES = {"plain": torch.bfloat16, "thin": torch.float16, "bias": torch.float64}


def whole(name: str, state: str = "weight", salt: int = 0) -> torch.Tensor:
    """The values of a tensor, the same on every rank and in every process."""
    seed = sum(map(ord, name + state)) + 1000 * salt
    random = torch.Generator().manual_seed(seed)
    dtype = DTYPES.get(name, torch.float32) if state == "weight" else torch.float32
    return torch.randn(SHAPES[name], generator=random).to(dtype)


def held(variant: int, *, filled: bool, salt: int = 0, states: bool = True) -> dict[str, Any]:
    """What this rank holds.

    Args:
        variant: which of the ways to cut the tensors.
        filled: with the values of :func:`whole`; else with -7, to be filled.
        salt: of the values.
        states: with an optimizer's.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    line = init_device_mesh("cpu", (size,))
    square = init_device_mesh("cpu", (2, size // 2) if size % 2 == 0 else (1, size))
    turned = variant % 2 == 1

    def values(name: str, state: str) -> torch.Tensor:
        source = whole(name, state, salt)
        return source if filled else torch.full_like(source, -7)

    def spread(name: str, state: str, *placements: Placement) -> DTensor:
        mesh = line if len(placements) == 1 else square
        return distribute_tensor(values(name, state), mesh, placements)

    def ranges(name: str, state: str) -> list[Shard]:
        """Flattened, in as many uneven parts as there are ranks; the first rank has two."""
        tensor = values(name, state).flatten()
        n = tensor.numel()
        at = [0] + [(r + 1) * n // (size + 1) + variant for r in range(size)] + [n]
        own = [(at[rank], at[rank + 1])] + ([(at[size], n)] if rank == 0 else [])
        shape = SHAPES[name]
        return [
            Shard(name, tensor[a:b].clone(), shape, (0,) * len(shape), shape, (a, b), state)
            for a, b in own
        ]

    def strips(name: str, state: str) -> list[Shard]:
        """Every ``size``-th pair of rows, as a strided placement gives them."""
        tensor = values(name, state)
        return [
            Shard(name, tensor[r : r + 2].clone(), tensor.shape, (r, 0), state=state)
            for r in range(2 * rank, len(tensor), 2 * size)
        ]

    def one(name: str, state: str) -> Any:
        if name == "rows":
            return spread(name, state, On(1 if turned else 0))
        if name == "columns":
            return spread(name, state, On(0 if turned else 1))
        if name == "block":
            return spread(name, state, *((On(0), On(1)) if turned else (On(1), On(0))))
        if name == "thin":
            return spread(name, state, *((On(0),) if turned else (Replicate(), On(0))))
        if name == "bias":
            return spread(name, state, *((Replicate(),) if turned else (On(0), On(0))))
        if name == "flat":
            return ranges(name, state) if not turned else spread(name, state, On(0))
        if name == "several":
            return strips(name, state) if not turned else ranges(name, state)
        if name == "cube":
            return spread(name, state, On(2)) if not turned else values(name, state)
        return values(name, state)

    out = {name: one(name, "weight") for name in SHAPES}
    if turned:  # held in another order of axes, so that the memory is strided
        out["cube"] = values("cube", "weight").permute(2, 0, 1).contiguous().permute(1, 2, 0)
    if states:
        for name in ("rows", "block", "flat", "several"):
            out[f"{name}@exp_avg"] = one(name, "exp_avg")
            out[f"{name}@step"] = torch.tensor(41.0 if filled else -7.0)
    return out


def wrong(state: dict[str, Any], salt: int = 0) -> list[str]:
    """Names of the tensors whose values are not those of :func:`whole`."""
    bad = []
    for name, value in state.items():
        key, _, kind = name.partition("@")
        if kind == "step":
            if value.item() != 41.0:
                bad.append(name)
            continue
        want = whole(key, kind or "weight", salt)
        if isinstance(value, DTensor):
            parts = [(value.full_tensor(), want)]
        elif isinstance(value, list):
            parts = [(s.tensor, _part(want, s)) for s in value]
        else:
            parts = [(value, want)]
        if not all(torch.equal(a, b) for a, b in parts):
            bad.append(name)
    return bad


def _part(want: torch.Tensor, shard: Shard) -> torch.Tensor:
    if shard.flat_range is not None:
        return want.flatten()[slice(*shard.flat_range)]
    assert shard.local_shape is not None
    box = zip(shard.offset, shard.local_shape, strict=True)
    return want[tuple(slice(o, o + n) for o, n in box)]
