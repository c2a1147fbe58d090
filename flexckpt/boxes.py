# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Integer geometry of shards: boxes, and ranges of a flattened box as boxes. No tensors here."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple


class Box(NamedTuple):
    """Per-axis half-open ranges ``[start, stop)`` of a tensor."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(b - a for a, b in zip(self.start, self.stop, strict=True))

    @property
    def numel(self) -> int:
        return prod(self.shape)

    def intersect(self, other: "Box") -> "Box | None":
        """The common box, or None where it is empty."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, stop) if all(a < b for a, b in zip(start, stop, strict=True)) else None

    def contains(self, other: "Box") -> bool:
        return all(a <= b for a, b in zip(self.start, other.start, strict=True)) and all(
            a >= b for a, b in zip(self.stop, other.stop, strict=True)
        )

    def subtract(self, other: "Box") -> list["Box"]:
        """What is left of this box without ``other``, as disjoint boxes."""
        common = self.intersect(other)
        if common is None:
            return [self] if self.numel else []
        rest = []
        start, stop = list(self.start), list(self.stop)
        for axis, (low, high) in enumerate(zip(common.start, common.stop, strict=True)):
            if start[axis] < low:
                rest.append(Box(tuple(start), (*stop[:axis], low, *stop[axis + 1 :])))
            if high < stop[axis]:
                rest.append(Box((*start[:axis], high, *start[axis + 1 :]), tuple(stop)))
            start[axis], stop[axis] = low, high
        return rest


@lru_cache(4096)
def full_box(shape: tuple[int, ...]) -> Box:
    return Box((0,) * len(shape), shape)


def box_at(offset: Sequence[int], shape: Sequence[int]) -> Box:
    return Box(tuple(offset), tuple(a + n for a, n in zip(offset, shape, strict=True)))


@lru_cache(4096)
def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Element strides of a dense tensor in C order."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def flat_range_boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """Elements ``[start, stop)`` of a box flattened in C order, as ``2 N - 1`` boxes at most.

    The boxes are disjoint and come in ascending order; each is contiguous in the flattened box.
    """
    if not 0 <= start <= stop <= prod(shape):
        raise ValueError(f"[{start}, {stop}) is not a range of a box of shape {tuple(shape)}")
    boxes: list[Box] = []

    def cut(prefix: tuple[int, ...], low: int, high: int) -> None:
        """Add elements [low, high) of the sub-box below the index ``prefix``."""
        axis = len(prefix)
        if low >= high:
            return
        ones = tuple(p + 1 for p in prefix)
        if axis == len(shape):
            boxes.append(Box(prefix, ones))
            return
        inner = prod(shape[axis + 1 :])
        first, last = -(-low // inner), high // inner  # the whole rows are [first, last)
        if first > last:  # inside one row
            row = low // inner
            cut((*prefix, row), low - row * inner, high - row * inner)
            return
        if low < first * inner:
            cut((*prefix, first - 1), low - (first - 1) * inner, inner)
        if first < last:
            rest = tuple(shape[axis + 1 :])
            boxes.append(Box((*prefix, first, *(0,) * len(rest)), (*ones, last, *rest)))
        if last * inner < high:
            cut((*prefix, last), 0, high - last * inner)

    cut((), start, stop)
    return boxes


class Region(NamedTuple):
    """A box of a global tensor and where its elements lie in a storage.

    The element with global index ``g`` lies at ``base + sum((g - start) * strides)``, in elements.
    """

    box: Box
    strides: tuple[int, ...]
    base: int


def shard_regions(
    offset: Sequence[int],
    local_shape: Sequence[int],
    flat_range: tuple[int, int] | None = None,
    strides: Sequence[int] | None = None,
    base: int = 0,
) -> list[Region]:
    """The regions of a shard: one for a box, at most ``2 N - 1`` for a range of a flattened box.

    Args:
        offset: of the local box in the global tensor.
        local_shape: of the local box.
        flat_range: elements ``[start, stop)`` of the local box in C order, which lie side by side.
        strides: of the local tensor, in elements; C order if None. Not with ``flat_range``.
        base: where the first element lies, in elements.
    """
    if flat_range is None:
        steps = tuple(strides) if strides is not None else c_strides(tuple(local_shape))
        return [Region(box_at(offset, local_shape), steps, base)]
    steps = c_strides(tuple(local_shape))
    first, stop = flat_range
    regions = []
    for box in flat_range_boxes(local_shape, first, stop):
        at = base - first + sum(a * s for a, s in zip(box.start, steps, strict=True))
        regions.append(Region(box_at(map_add(offset, box.start), box.shape), steps, at))
    return regions


def map_add(a: Iterable[int], b: Iterable[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip(a, b, strict=True))
