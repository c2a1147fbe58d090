# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random ways to cut a tensor into boxes and flattened ranges, and shards of the parts."""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from hypothesis import strategies as st

from flexckpt import Shard


class Part(NamedTuple):
    """A box of a tensor, or a range of it flattened."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat_range: tuple[int, int] | None = None


Shape = tuple[int, ...]
SHAPES = st.lists(st.integers(0, 6), max_size=4).map(tuple)
FULL_SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@st.composite
def partitions(draw: st.DrawFn, shape: Shape, cuts: int = 4) -> list[Part]:
    """Disjoint parts that make up a tensor; some may be empty."""
    boxes: list[tuple[Shape, Shape]] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, cuts)) if shape else 0):
        offset, box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        axis = draw(st.integers(0, len(shape) - 1))
        n = draw(st.integers(0, box[axis]))
        upper = (*offset[:axis], offset[axis] + n, *offset[axis + 1 :])
        boxes.append((offset, (*box[:axis], n, *box[axis + 1 :])))
        boxes.append((upper, (*box[:axis], box[axis] - n, *box[axis + 1 :])))
    parts = []
    for offset, box in boxes:
        if draw(st.booleans()):
            parts.append(Part(offset, box))
            continue
        size = prod(box)
        bounds = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
        for start, stop in zip([0, *bounds], [*bounds, size], strict=True):
            parts.append(Part(offset, box, (start, stop)))
    return parts


def cut(whole: torch.Tensor, part: Part) -> torch.Tensor:
    """What a part holds, as a tensor of its own."""
    box = whole[tuple(slice(o, o + n) for o, n in zip(part.offset, part.shape, strict=True))]
    if part.flat_range is not None:
        box = box.flatten()[slice(*part.flat_range)]
    return box.clone()


def shard(key: str, whole: torch.Tensor, part: Part, tensor: torch.Tensor | None = None) -> Shard:
    """A shard of a part, with the values of ``whole`` unless a tensor is given."""
    data = cut(whole, part) if tensor is None else tensor
    return Shard(key, data, whole.shape, part.offset, part.shape, part.flat_range)


def strided(like: torch.Tensor, order: Sequence[int], step: int) -> torch.Tensor:
    """A tensor of zeros of the same shape whose memory has other strides and an offset.

    Args:
        like: the shape.
        order: the axes, the slowest first.
        step: of the fastest axis.
    """
    shape = [like.shape[axis] for axis in order] + [step]
    base = like.new_zeros(prod(shape) + 3)[3:].view(shape)[..., 0]
    return base.permute([order.index(axis) for axis in range(like.ndim)])
