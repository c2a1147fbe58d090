# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a DTensor's mesh and placements say: how it is cut, what lies here, and who holds the same.

Imported when the first DTensor is met: who has none does not wait for ``torch.distributed``.
"""

from functools import lru_cache

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.distributed.tensor import Shard as ShardPlacement
from torch.distributed.tensor.placement_types import _StridedShard

from flexckpt.errors import LayoutError
from flexckpt.layout.mesh_boxes import Cut, Cuts, local_boxes, local_shape, unclear_axis
from flexckpt.model import Shard


def dtensor_shards(key: str, state: str, value: DTensor) -> list[Shard]:
    """See :func:`flexckpt.layout.dtensor.shards_of`."""
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


def ranks_with_the_same(name: str, value: DTensor) -> tuple[int, ...] | None:
    """See :func:`flexckpt.layout.dtensor.replicas`."""
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
