# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pieces: how part of a source tensor becomes part of a variable, as one affine map of indices.

Everything the mapping language does to geometry (concatenate, split, permute, stack, reshape, pad)
keeps a piece affine, so one representation serves from the evaluated program down to the strided
copy.
"""

from collections.abc import Iterator
from math import prod
from typing import Literal, NamedTuple

from flexckpt.boxes import Box

Side = Literal["src", "dst"]


class Dim(NamedTuple):
    """``extent`` steps along one axis of the source and one of the destination."""

    extent: int
    src_axis: int
    src_step: int
    dst_axis: int
    dst_step: int


class Piece(NamedTuple):
    """Elements of one source tensor in their places in a variable.

    For every index ``i`` with ``0 <= i[d] < dims[d].extent`` the variable's element at ``dst`` plus
    the steps of the dims is the source's element at ``src`` plus theirs. Dims of extent 1 are left
    out.

    Attributes:
        source: name of the source tensor; None for a constant.
        src: source index of the first element, one entry per source axis.
        dst: destination index of the first element, one entry per axis of the variable.
        dims: the axes of the piece.
        casts: names of dtypes ("bfloat16") through which the values go, in order; only for weights.
        fill: the constant, where ``source`` is None.
    """

    source: str | None
    src: tuple[int, ...]
    dst: tuple[int, ...]
    dims: tuple[Dim, ...]
    casts: tuple[str, ...] = ()
    fill: float = 0.0

    @property
    def numel(self) -> int:
        return prod(d.extent for d in self.dims)


def whole(source: str | None, shape: tuple[int, ...], fill: float = 0.0) -> list[Piece]:
    """The pieces of a variable that is a source tensor as it is: one, or none if it is empty."""
    if 0 in shape:
        return []
    dims = tuple(Dim(n, k, 1, k, 1) for k, n in enumerate(shape) if n != 1)
    zero = (0,) * len(shape)
    return [Piece(source, zero, zero, dims, (), fill)]


def narrow(piece: Piece, side: Side, axis: int, start: int, stop: int) -> list[Piece]:
    """The part of a piece whose indices on ``axis`` of ``side`` lie in ``[start, stop)``."""
    if side == "dst":
        first = piece.dst[axis]
        on_axis = [(d.dst_step, k) for k, d in enumerate(piece.dims) if d.dst_axis == axis]
    else:
        first = piece.src[axis]
        on_axis = [(d.src_step, k) for k, d in enumerate(piece.dims) if d.src_axis == axis]
    low, high = start - first, stop - first
    if not on_axis:
        return [piece] if low <= 0 < high else []
    if len(on_axis) == 1:
        step, k = on_axis[0]
        extent = piece.dims[k].extent
        if step == 1:
            a, b = (low if low > 0 else 0), (high if high < extent else extent)
        else:
            a, b = max(0, -(-low // step)), min(extent, -(-high // step))
        if a >= b:
            return []
        return [piece] if a == 0 and b == extent else [_cut(piece, k, a, b)]
    on_axis.sort(reverse=True)
    step, k = on_axis[0]
    extent = piece.dims[k].extent
    span = sum(s * (piece.dims[j].extent - 1) for s, j in on_axis[1:])
    if low <= 0 and span + step * (extent - 1) < high:
        return [piece]
    # Steps of the outermost dim: those that touch the range, and those that lie in it as a whole.
    touch = max(0, -(-(low - span) // step)), min(extent, -(-high // step))
    inside = max(0, -(-low // step)), min(extent, -(-(high - span) // step))
    if inside[0] >= inside[1]:
        inside = touch[1], touch[1]
    parts = []
    for a in (*range(touch[0], inside[0]), *range(inside[1], touch[1])):
        parts += narrow(_cut(piece, k, a, a + 1), side, axis, start, stop)
    if inside[0] < inside[1]:
        parts.append(_cut(piece, k, *inside))
    return parts


def _cut(piece: Piece, k: int, a: int, b: int) -> Piece:
    """Steps ``[a, b)`` of dim ``k`` only."""
    dim = piece.dims[k]
    src, dst = piece.src, piece.dst
    if a:
        s, d = dim.src_axis, dim.dst_axis
        src = (*src[:s], src[s] + a * dim.src_step, *src[s + 1 :])
        dst = (*dst[:d], dst[d] + a * dim.dst_step, *dst[d + 1 :])
    new = (dim._replace(extent=b - a),) if b - a > 1 else ()
    return piece._replace(src=src, dst=dst, dims=piece.dims[:k] + new + piece.dims[k + 1 :])


def restrict(piece: Piece, side: Side, box: Box) -> list[Piece]:
    """The part of a piece whose indices on ``side`` lie in ``box``."""
    parts = [piece]
    for axis, (start, stop) in enumerate(zip(box.start, box.stop, strict=True)):
        if len(parts) == 1:
            parts = narrow(parts[0], side, axis, start, stop)
        else:
            parts = [q for p in parts for q in narrow(p, side, axis, start, stop)]
        if not parts:
            break
    return parts


class Variable(NamedTuple):
    """A tensor of the mapping language: shape, dtype name, and pieces that tile it exactly."""

    shape: tuple[int, ...]
    dtype: str
    pieces: list[Piece]

    def query(self, box: Box) -> Iterator[Piece]:
        """The pieces inside ``box``, with destination indices of the whole variable."""
        for piece in self.pieces:
            yield from restrict(piece, "dst", box)
