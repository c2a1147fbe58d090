# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Copies: a piece between two storages, as extents and strides."""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from flexckpt.boxes import Region
from flexckpt.pieces import Piece


class Copy(NamedTuple):
    """``target[base + i . strides] = source[base + i . strides]`` for every index ``i`` within
    ``extents``.

    Bases and strides count elements: of the source from the first stored element of the shard, of
    the target from the start of its storage. The last dim has the smallest step in the target.

    Attributes:
        shard: number of the source shard in the plan; -1 for a constant.
        target: number of the target in the plan.
        casts: dtypes through which the values go before they take the target's.
        fill: the constant, where ``shard`` is -1.
    """

    shard: int
    target: int
    extents: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]
    src_base: int
    dst_base: int
    casts: tuple[str, ...] = ()
    fill: float = 0.0

    @property
    def numel(self) -> int:
        return prod(self.extents)

    @property
    def run(self) -> int:
        """How many elements lie side by side on both sides: 1 if none do."""
        if not self.extents:
            return 1
        return self.extents[-1] if self.src_strides[-1] == 1 == self.dst_strides[-1] else 1

    def chunks(self, limit: int) -> Iterator["Copy"]:
        """The same copy in parts of at most ``limit`` elements, cut along the outer dims first."""
        if self.numel <= limit:
            yield self
            return
        axis = next(k for k, n in enumerate(self.extents) if n > 1)
        inner = self.numel // self.extents[axis]
        step = max(1, limit // inner)
        for start in range(0, self.extents[axis], step):
            n = min(step, self.extents[axis] - start)
            part = self._replace(
                extents=(*self.extents[:axis], n, *self.extents[axis + 1 :]),
                src_base=self.src_base + start * self.src_strides[axis],
                dst_base=self.dst_base + start * self.dst_strides[axis],
            )
            yield from part.chunks(limit)


def copy_of(piece: Piece, shard: int, src: Region | None, target: int, dst: Region) -> Copy:
    """The copy of a piece that lies inside both regions; ``src`` is None for a constant."""
    dst_strides = dst.strides
    dst_base = dst.base
    for at, start, step in zip(piece.dst, dst.box.start, dst_strides, strict=True):
        dst_base += (at - start) * step
    src_base = 0
    if src is None:
        steps = [(d.dst_step * dst_strides[d.dst_axis], 0, d.extent) for d in piece.dims]
    else:
        src_strides = src.strides
        src_base = src.base
        for at, start, step in zip(piece.src, src.box.start, src_strides, strict=True):
            src_base += (at - start) * step
        steps = [
            (dst_step * dst_strides[dst_axis], src_step * src_strides[src_axis], extent)
            for extent, src_axis, src_step, dst_axis, dst_step in piece.dims
        ]
    sides = merge_dims(steps)
    return Copy(shard, target, *sides, src_base, dst_base, piece.casts, piece.fill)


Sides = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_ONE = (1,)


def merge_dims(steps: list[tuple[int, int, int]]) -> Sides:
    """Extents, source strides and target strides of as few dims as there can be.

    Args:
        steps: ``(target step, source step, extent)`` of each dim, in any order.
    """
    if not steps:
        return _ONE, _ONE, _ONE
    if len(steps) == 1:
        d, s, n = steps[0]
        return (n,), (s,), (d,)
    steps.sort(reverse=True)
    merged = [steps.pop()]
    while steps:
        d, s, n = steps.pop()
        d0, s0, n0 = merged[-1]
        if d == d0 * n0 and s == s0 * n0:
            merged[-1] = (d0, s0, n0 * n)
        else:
            merged.append((d, s, n))
    merged.reverse()
    return (
        tuple([n for _, _, n in merged]),
        tuple([s for _, s, _ in merged]),
        tuple([d for d, _, _ in merged]),
    )
