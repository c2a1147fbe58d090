# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What this process holds of a tensor, a DTensor or an FSDP2 parameter, as shards."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from flexckpt.errors import LayoutError
from flexckpt.model import Shard
from flexckpt.states import WEIGHT, join_name, split_name

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Value = torch.Tensor | Shard | Sequence[Shard]


def is_dtensor(value: Any) -> "TypeGuard[DTensor]":
    """Whether a value is a DTensor. There is none before its module was imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def shards_of(name: str, value: Value, *, state: str | None = None) -> list[Shard]:
    """The shards of a value that lie in this process.

    Args:
        name: key of the parameter; with ``state=None`` a flat name (``w``, ``w@exp_avg``).
        value: a dense tensor, which is the whole parameter; a DTensor of any mesh and placements
            but ``Partial`` (an FSDP2 parameter is one); or shards, which are checked and returned.
        state: which state of the parameter; read from the name if None.

    Returns:
        Shards whose tensors are views of the value, so that filling them fills it. A strided
        placement may give several; a rank whose part is empty gets one without elements; a rank
        outside of the mesh gets none.

    Raises:
        LayoutError: LAY104 if the value is not a dense tensor, LAY106 if a placement is not
            supported, LAY102 if a shard is of another parameter or a local tensor has an unexpected
            shape.
    """
    key, state = split_name(name) if state is None else (name, state)
    if isinstance(value, Shard):
        return [_checked(name, key, state, value)]
    if is_dtensor(value):
        from flexckpt.layout.placements import dtensor_shards

        return dtensor_shards(key, state, value)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise LayoutError("LAY104", f"{name!r} must be a dense tensor, not {value.layout}")
        whole = value.detach()
        return [Shard(key, whole, whole.shape, (0,) * whole.ndim, state=state)]
    if isinstance(value, list | tuple) and all(isinstance(part, Shard) for part in value):
        return [_checked(name, key, state, part) for part in value]
    raise LayoutError(
        "LAY104", f"{name!r} must be a tensor or shards of one, not {type(value).__name__}"
    )


def replicas(name: str, value: Value) -> tuple[int, ...] | None:
    """The global ranks that hold the same part of a DTensor as this one, ascending.

    Returns:
        None if nothing tells: for a plain tensor, for shards, and for a rank outside of the mesh.

    Raises:
        LayoutError: LAY106 if a placement is not supported.
    """
    if not is_dtensor(value):
        return None
    from flexckpt.layout.placements import ranks_with_the_same

    return ranks_with_the_same(name, value)


def _checked(name: str, key: str, state: str, shard: Shard) -> Shard:
    """A shard that goes by ``name``, with a state written in its own key moved to its field."""
    own_key, own_state = shard.key, shard.state
    if own_state == WEIGHT:
        own_key, own_state = split_name(shard.key)
    agrees = own_key == key and state in (WEIGHT, own_state)
    if not agrees and join_name(own_key, own_state) != name:
        raise LayoutError(
            "LAY102", f"a shard of {join_name(own_key, own_state)!r} is given as {name!r}"
        )
    return shard if own_key == shard.key else replace(shard, key=own_key, state=own_state)
