# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How DeepSpeed cuts the parameters of a group into flat partitions of its ranks. Integers only."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import NamedTuple

Shapes = Mapping[str, tuple[int, ...]]

# ZeRO-1/2 pads a group to a multiple of this many elements per rank (4 bytes of a 16-bit dtype).
_ALIGNMENT = 2


class Slice(NamedTuple):
    """Elements ``[start, stop)`` of a flattened parameter: ``at`` in the partition of ``rank``."""

    name: str
    rank: int
    start: int
    stop: int
    at: int


class Partitions(NamedTuple):
    """The cut of one group over the ranks.

    Attributes:
        slices: every element of every parameter once.
        padded: how many elements the flat tensor of a rank has with its padding.
        filled: how many it has without the padding at its end, by rank. DeepSpeed stores either.
    """

    slices: list[Slice]
    padded: int
    filled: list[int]


def straddling(shapes: Shapes, gaps: Sequence[int], ranks: int) -> Partitions:
    """ZeRO-1/2: the parameters lie behind one another in one vector, which is cut evenly.

    Args:
        shapes: of the parameters, in their order in the vector.
        gaps: elements of padding behind each parameter.
        ranks: number of partitions.
    """
    ends, total = [], 0
    for shape, gap in zip(shapes.values(), gaps, strict=True):
        ends.append(total + prod(shape))
        total = ends[-1] + gap
    unit = _ALIGNMENT * ranks
    size = -(-total // unit) * _ALIGNMENT
    slices = []
    for (name, shape), end in zip(shapes.items(), ends, strict=True):
        first = end - prod(shape)
        for rank in range(first // size, -(-end // size)) if end > first else ():
            low, high = max(first, rank * size), min(end, (rank + 1) * size)
            slices.append(Slice(name, rank, low - first, high - first, low - rank * size))
    filled = [min(max(total - rank * size, 0), size) for rank in range(ranks)]
    return Partitions(slices, size, filled)


def even(shapes: Shapes, ranks: int) -> Partitions:
    """ZeRO-3: each parameter is padded and cut evenly; a rank has its pieces behind one another."""
    slices, at = [], 0
    for name, shape in shapes.items():
        piece, cuts = even_piece(prod(shape), ranks)
        slices += [Slice(name, rank, a, b, at) for rank, (a, b) in enumerate(cuts) if a < b]
        at += piece
    return Partitions(slices, at, [at] * ranks)


def even_piece(numel: int, ranks: int) -> tuple[int, Iterator[tuple[int, int]]]:
    """The length of the piece that every rank has of a parameter, and which elements each holds."""
    piece = -(-numel // ranks)
    cuts = ((min(r * piece, numel), min((r + 1) * piece, numel)) for r in range(ranks))
    return piece, cuts
