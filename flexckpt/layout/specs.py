# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Descriptions of tensors as the whole job holds them: where each is cut, without its data.

Of a DTensor one rank knows all boxes; of plain shards each rank knows its own, and the descriptions
of all ranks are merged.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import torch

from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import Value, is_dtensor
from flexckpt.layout.mesh_boxes import Cuts, coordinates, local_boxes
from flexckpt.model import Shard, TensorSpec

Boxes = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def global_spec(name: str, value: Value) -> TensorSpec | None:
    """What the whole job holds of a tensor, known without asking the other ranks.

    Args:
        name: of the tensor, for messages.
        value: a tensor or a DTensor; plain shards tell nothing of those on other ranks.

    Returns:
        Shape, dtype and the distinct boxes that are not empty (None for a tensor in one piece).
        None if the other ranks must be asked (:func:`local_spec`, :func:`merge_specs`).

    Raises:
        LayoutError: LAY106 if a placement is not supported.
    """
    if is_dtensor(value):
        from flexckpt.layout.placements import cuts_of

        shape = tuple(value.shape)
        boxes = mesh_boxes(shape, tuple(value.device_mesh.shape), cuts_of(name, value))
        return TensorSpec(shape, value.dtype, boxes if len(boxes) > 1 else None)
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), value.dtype)
    return None


@lru_cache(maxsize=4096)
def mesh_boxes(global_shape: tuple[int, ...], mesh_shape: tuple[int, ...], cuts: Cuts) -> Boxes:
    """The distinct boxes of all places of a mesh that are not empty, in the order of the mesh."""
    places = coordinates([n if cut else 1 for n, cut in zip(mesh_shape, cuts, strict=True)])
    return tuple(
        dict.fromkeys(
            (box.offset, box.shape)
            for place in places
            for box in local_boxes(global_shape, mesh_shape, cuts, place)
            if 0 not in box.shape
        )
    )


def local_spec(shards: Sequence[Shard]) -> TensorSpec:
    """What this rank holds of one tensor: the distinct boxes of its shards that are not empty.

    Of a flattened shard that is the box which was flattened.

    Raises:
        LayoutError: LAY105 if the shards contradict one another, LAY102 without any shard.
    """
    specs = [
        TensorSpec(
            tuple(shard.global_shape),
            shard.tensor.dtype,
            ((tuple(shard.offset), tuple(shard.local_shape or ())),),
        )
        for shard in shards
    ]
    if not specs:
        raise LayoutError("LAY102", "a tensor must have at least one shard to be described")
    return _merged(shards[0].key, specs)


def merge_specs(ranks: Iterable[Mapping[str, TensorSpec]]) -> dict[str, TensorSpec]:
    """The descriptions of the same job by several ranks as one; boxes are united.

    Raises:
        LayoutError: LAY105 if ranks disagree on the shape or the dtype of a tensor.
    """
    found: dict[str, list[TensorSpec]] = {}
    for rank in ranks:
        for name, spec in rank.items():
            found.setdefault(name, []).append(spec)
    return {name: _merged(name, specs) for name, specs in found.items()}


def _merged(name: str, specs: Sequence[TensorSpec]) -> TensorSpec:
    first = specs[0]
    whole = ((0,) * len(first.shape), first.shape)
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}
    for spec in specs:
        if (spec.shape, spec.dtype) != (first.shape, first.dtype):
            raise LayoutError(
                "LAY105",
                f"{name!r} is a tensor of shape {first.shape} and {first.dtype} in one shard, of "
                f"shape {spec.shape} and {spec.dtype} in another",
            )
        boxes.update(dict.fromkeys((whole,) if spec.shards is None else spec.shards))
    filled = tuple(box for box in boxes if 0 not in box[1])
    in_one_piece = filled == (whole,) or 0 in first.shape
    return TensorSpec(first.shape, first.dtype, None if in_one_piece else filled)
