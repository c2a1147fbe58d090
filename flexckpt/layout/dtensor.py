# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What this process holds of a tensor, a DTensor or an FSDP2 parameter, as shards."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor.placement_types import _StridedShard

from flexckpt.errors import LayoutError
from flexckpt.layout.mesh_boxes import Cut, Cuts, local_boxes, local_shape, unclear_axis
from flexckpt.model import Shard
from flexckpt.states import WEIGHT, join_name, split_name

Value = torch.Tensor | Shard | Sequence[Shard]


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
        return [_checked(name, key, value)]
    if isinstance(value, DTensor):
        return _dtensor_shards(key, state, value)
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise LayoutError("LAY104", f"{name!r} must be a dense tensor, not {value.layout}")
        whole = value.detach()
        return [Shard(key, whole, whole.shape, (0,) * whole.ndim, state=state)]
    if isinstance(value, list | tuple) and all(isinstance(part, Shard) for part in value):
        return [_checked(name, key, part) for part in value]
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
    if not isinstance(value, DTensor):
        return None
    coordinate = value.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    cuts = cuts_of(name, value)
    places = [i if cut else None for i, cut in zip(coordinate, cuts, strict=True)]
    return _ranks_at(value.device_mesh, tuple(places))


@lru_cache(maxsize=1024)
def _ranks_at(mesh: DeviceMesh, places: tuple[int | None, ...]) -> tuple[int, ...]:
    """The ranks at some places of a mesh; None stands for every place of a dimension."""
    here = tuple(slice(None) if place is None else place for place in places)
    return tuple(sorted(mesh.mesh[here].flatten().tolist()))


def cuts_of(name: str, value: DTensor) -> Cuts:
    """What each mesh dimension does to a DTensor.

    Raises:
        LayoutError: LAY106 if a placement is not supported or can be read in two ways.
    """
    mesh = value.device_mesh
    cuts = _cuts(value.placements, value.ndim)
    if cuts is None:
        raise LayoutError(
            "LAY106",
            f"{name!r}: placements {value.placements} of a tensor with {value.ndim} axes are not "
            "supported",
        )
    for dim in _unordered_dims(mesh):
        if cuts[dim] is not None:
            raise LayoutError(
                "LAY106",
                f"{name!r}: the ranks of a mesh must ascend along a dimension that cuts, unlike "
                f"along dimension {dim} of {mesh.mesh.tolist()}",
            )
    axis = unclear_axis(tuple(value.shape), tuple(mesh.shape), cuts)
    if axis is not None:
        raise LayoutError(
            "LAY106",
            f"{name!r}: placements {value.placements} do not tell where axis {axis} of length "
            f"{value.shape[axis]} is cut on a mesh of shape {tuple(mesh.shape)}, because the parts "
            "are uneven; pass flexckpt.Shard objects with the true offsets",
        )
    return cuts


@lru_cache(maxsize=1024)
def _cuts(placements: tuple[Placement, ...], ndim: int) -> Cuts | None:
    cuts: list[Cut | None] = []
    for placement in placements:
        if isinstance(placement, Replicate):
            cuts.append(None)
        elif isinstance(placement, ShardPlacement | _StridedShard):
            axis = placement.dim + ndim if placement.dim < 0 else placement.dim
            if not 0 <= axis < ndim:
                return None
            factor = placement.split_factor if isinstance(placement, _StridedShard) else 1
            cuts.append(Cut(axis, int(factor)))
        else:
            return None
    return tuple(cuts)


@lru_cache(maxsize=64)
def _unordered_dims(mesh: DeviceMesh) -> tuple[int, ...]:
    """Dimensions along which ranks do not ascend.

    torch numbers the members of a group by ascending rank and the places of a mesh as it is
    written; its collectives follow the former, its offsets the latter.
    """
    ranks = mesh.mesh
    return tuple(dim for dim in range(mesh.ndim) if not bool((ranks.diff(dim=dim) > 0).all()))


def _dtensor_shards(key: str, state: str, value: DTensor) -> list[Shard]:
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return []
    where = (tuple(value.shape), tuple(mesh.shape), cuts_of(key, value), tuple(coordinate))
    with torch.no_grad():
        local = value.to_local().detach()
    expected = local_shape(*where)
    if tuple(local.shape) != expected:
        raise LayoutError(
            "LAY102",
            f"{key!r}: the local tensor must have shape {expected} by its placements "
            f"{value.placements}, not {tuple(local.shape)}",
        )
    boxes = local_boxes(*where)
    if boxes[0].shape == expected:
        return [Shard(key, local, value.shape, boxes[0].offset, state=state)]
    shards = []
    for box in boxes:
        part = local
        for axis, (start, n) in enumerate(zip(box.start, box.shape, strict=True)):
            part = part.narrow(axis, start, n)
        shards.append(Shard(key, part, value.shape, box.offset, state=state))
    return shards


def _checked(name: str, key: str, shard: Shard) -> Shard:
    """A shard that goes by ``name``, with a state written in its own key moved to its field."""
    own_key, own_state = shard.key, shard.state
    if own_state == WEIGHT:
        own_key, own_state = split_name(shard.key)
    if own_key != key and join_name(own_key, own_state) != name:
        raise LayoutError("LAY102", f"a shard of {shard.key!r} is given under the name {name!r}")
    if own_key == shard.key:
        return shard
    return replace(shard, key=own_key, state=own_state)
