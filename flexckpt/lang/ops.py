# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The operations of the language on variables: every one keeps pieces affine and tilings exact.

A dtype that is not known, because a description leaves it open, is the empty string.
"""

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from math import prod

from flexckpt.errors import AoaError
from flexckpt.lang.reshape import MAX_PIECES, reshape_piece
from flexckpt.pieces import Dim, Piece, Variable, narrow, whole


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """An axis counted from the front, or AOA302."""
    if not -rank <= axis < rank:
        raise AoaError("AOA302", f"{what} {axis} is outside a tensor of {rank} dimensions")
    return axis % rank


def concat(operands: Sequence[Variable], axis: int) -> Variable:
    """The operands one after another on ``axis``; pieces that continue one another become one."""
    first = operands[0]
    axis = axis_of(axis, len(first.shape))
    length, dtype = 0, first.dtype
    for v in operands:
        if len(v.shape) != len(first.shape) or any(
            a != b for k, (a, b) in enumerate(zip(v.shape, first.shape, strict=True)) if k != axis
        ):
            raise AoaError(
                "AOA302",
                f"tensors of shapes {first.shape} and {v.shape} cannot be joined on axis {axis}",
            )
        if v.dtype and dtype and v.dtype != dtype:
            raise AoaError(
                "AOA303",
                f"a {dtype} and a {v.dtype} tensor cannot be joined; cast one of them first",
            )
        dtype = dtype or v.dtype
        length += v.shape[axis]
    out: list[Piece] = []
    last: dict[tuple[str | None, tuple[int, ...]], int] = {}  # where on the other axes -> position
    at = 0
    for v in operands:
        for piece in v.pieces:
            dst = piece.dst
            place = piece.source, dst[:axis] + dst[axis + 1 :]
            if at:
                dst = (*dst[:axis], dst[axis] + at, *dst[axis + 1 :])
                piece = tuple.__new__(
                    Piece, (piece[0], piece[1], dst, piece[3], piece[4], piece[5])
                )
            before = last.get(place)
            if before is not None:
                joined = join(out[before], piece, axis)
                if joined is not None:
                    out[before] = joined
                    continue
            last[place] = len(out)
            out.append(piece)
        at += v.shape[axis]
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return Variable(shape, dtype, out)


def check_lengths(
    operands: Sequence[Variable],
    axis: int,
    heads: Sequence[int] | None,
    sizes: Sequence[int] | None,
) -> None:
    """Raise unless lengths on an axis are ``sizes``, or in the proportions of ``heads``."""
    lengths = [v.shape[axis_of(axis, len(v.shape))] for v in operands]
    if sizes is not None and lengths != list(sizes):
        raise AoaError(
            "AOA302", f"lengths {lengths} on axis {axis} are not the sizes {list(sizes)}"
        )
    if heads is not None and any(
        n * heads[0] != lengths[0] * h for n, h in zip(lengths, heads, strict=True)
    ):
        raise AoaError(
            "AOA302",
            f"lengths {lengths} on axis {axis} are not in the proportions {list(heads)}",
        )


def join(a: Piece, b: Piece, axis: int) -> Piece | None:
    """One piece for two, where ``b`` goes on where ``a`` ends on an axis of the destination."""
    if a.source is None or a.source != b.source or a.casts != b.casts:
        return None
    on_a = [d for d in a.dims if d.dst_axis == axis]
    on_b = [d for d in b.dims if d.dst_axis == axis]
    if len(on_a) > 1 or len(on_b) > 1:
        return None
    n = on_a[0].extent if on_a else 1
    m = on_b[0].extent if on_b else 1
    if b.dst[axis] - a.dst[axis] != n or any(d.dst_step != 1 for d in (*on_a, *on_b)):
        return None
    moved = [(k, y - x) for k, (x, y) in enumerate(zip(a.src, b.src, strict=True)) if x != y]
    if len(moved) != 1:
        return None
    src_axis, distance = moved[0]
    if distance <= 0 or distance % n:
        return None
    step = distance // n
    if any(d.src_axis != src_axis or d.src_step != step for d in (*on_a, *on_b)):
        return None
    rest = [d for d in a.dims if d.dst_axis != axis]
    if rest != [d for d in b.dims if d.dst_axis != axis]:
        return None
    dims = (*rest, Dim(n + m, src_axis, step, axis, 1))
    return a._replace(dims=tuple(sorted(dims, key=_by_place)))


def _by_place(dim: Dim) -> tuple[int, int]:
    return dim.dst_axis, -dim.dst_step


def split(variable: Variable, axis: int, sizes: Sequence[int]) -> list[Variable]:
    """Consecutive parts of the given lengths."""
    axis = axis_of(axis, len(variable.shape))
    length = variable.shape[axis]
    if sum(sizes) != length:
        raise AoaError(
            "AOA302",
            f"sizes {list(sizes)} add up to {sum(sizes)}, but axis {axis} of shape "
            f"{variable.shape} has length {length}",
        )
    ends = list(accumulate(sizes))
    parts: list[list[Piece]] = [[] for _ in sizes]
    for piece in variable.pieces:
        low = high = piece.dst[axis]
        for dim in piece.dims:
            if dim.dst_axis == axis:
                high += dim.dst_step * (dim.extent - 1)
        i = bisect_right(ends, low)
        while i < len(ends):
            start = ends[i] - sizes[i]
            if start > high:
                break
            for cut in narrow(piece, "dst", axis, start, ends[i]):
                dst = cut.dst
                if start:
                    dst = (*dst[:axis], dst[axis] - start, *dst[axis + 1 :])
                parts[i].append(cut._replace(dst=dst))
            i += 1
    before, after = variable.shape[:axis], variable.shape[axis + 1 :]
    return [
        Variable((*before, n, *after), variable.dtype, pieces)
        for n, pieces in zip(sizes, parts, strict=True)
    ]


def equal_sizes(variable: Variable, axis: int, parts: int) -> list[int]:
    axis = axis_of(axis, len(variable.shape))
    length = variable.shape[axis]
    if length % parts:
        raise AoaError(
            "AOA302",
            f"axis {axis} of shape {variable.shape} has length {length}, which {parts} equal "
            f"parts do not divide",
        )
    return [length // parts] * parts


def permute(variable: Variable, order: tuple[int, ...]) -> Variable:
    """Axis ``i`` of the result is axis ``order[i]``; an empty order turns all axes around."""
    rank = len(variable.shape)
    order = order or tuple(range(rank - 1, -1, -1))
    if len(order) != rank:
        raise AoaError(
            "AOA302",
            f"permute names {len(order)} axes, but the tensor of shape {variable.shape} has {rank}",
        )
    pieces = []
    for piece in variable.pieces:
        dst = tuple([piece.dst[k] for k in order])
        pieces.append(piece._replace(dst=dst, dims=_permuted(piece.dims, order)))
    return Variable(tuple([variable.shape[k] for k in order]), variable.dtype, pieces)


@lru_cache(4096)
def _permuted(dims: tuple[Dim, ...], order: tuple[int, ...]) -> tuple[Dim, ...]:
    new = [d._replace(dst_axis=order.index(d.dst_axis)) for d in dims]
    return tuple(sorted(new, key=_by_place))


def cast(variable: Variable, dtype: str) -> Variable:
    if dtype == variable.dtype:
        return variable
    pieces = [p._replace(casts=(*p.casts, dtype)) for p in variable.pieces]
    return Variable(variable.shape, dtype, pieces)


def add_axis(variable: Variable, axis: int) -> Variable:
    """A new axis of length 1."""
    pieces = [
        tuple.__new__(
            Piece,
            (
                p.source,
                p.src,
                (*p.dst[:axis], 0, *p.dst[axis:]),
                _renumbered(p.dims, axis, 1),
                p.casts,
                p.fill,
            ),
        )
        for p in variable.pieces
    ]
    shape = (*variable.shape[:axis], 1, *variable.shape[axis:])
    return Variable(shape, variable.dtype, pieces)


def drop_axis(variable: Variable, axis: int) -> Variable:
    """Without an axis of length 1."""
    pieces = [
        p._replace(
            dst=(*p.dst[:axis], *p.dst[axis + 1 :]),
            dims=_renumbered(p.dims, axis, -1),
        )
        for p in variable.pieces
    ]
    return Variable((*variable.shape[:axis], *variable.shape[axis + 1 :]), variable.dtype, pieces)


@lru_cache(4096)
def _renumbered(dims: tuple[Dim, ...], axis: int, by: int) -> tuple[Dim, ...]:
    """Dims whose destination axes from ``axis`` on have moved."""
    return tuple([d._replace(dst_axis=d.dst_axis + by * (d.dst_axis >= axis)) for d in dims])


def stack(operands: Sequence[Variable], axis: int) -> Variable:
    axis = axis_of(axis, len(operands[0].shape) + 1)
    for v in operands:
        if v.shape != operands[0].shape:
            raise AoaError(
                "AOA302", f"tensors of shapes {operands[0].shape} and {v.shape} cannot be stacked"
            )
    return concat([add_axis(v, axis) for v in operands], axis)


def unstack(variable: Variable, axis: int, parts: int) -> list[Variable]:
    axis = axis_of(axis, len(variable.shape))
    if variable.shape[axis] != parts:
        raise AoaError(
            "AOA302",
            f"axis {axis} of shape {variable.shape} is unstacked into {variable.shape[axis]} "
            f"tensors, but there are {parts} names",
        )
    return [drop_axis(v, axis) for v in split(variable, axis, [1] * parts)]


def reshape(variable: Variable, shape: tuple[int, ...]) -> Variable:
    """The same elements in C order."""
    numel = prod(variable.shape)
    if -1 in shape:
        known = -prod(shape)
        if known == 0 or numel % known:
            raise AoaError(
                "AOA302", f"shape {variable.shape} cannot become {list(shape)}: no length fits -1"
            )
        shape = tuple([numel // known if n == -1 else n for n in shape])
    if prod(shape) != numel:
        raise AoaError(
            "AOA302",
            f"shape {variable.shape} has {numel} elements, but {list(shape)} has {prod(shape)}",
        )
    pieces: list[Piece] = []
    for piece in variable.pieces:
        new = reshape_piece(piece, variable.shape, shape)
        if new is None:
            raise AoaError(
                "AOA302",
                f"shape {variable.shape} cannot become {list(shape)}: axes do not fall onto axes, "
                f"and it would take more than {MAX_PIECES} pieces",
            )
        pieces += new
    return Variable(shape, variable.dtype, pieces)


def pad(variable: Variable, axis: int, length: int) -> Variable:
    """Zeros behind the end of an axis, up to ``length``."""
    axis = axis_of(axis, len(variable.shape))
    shape = variable.shape
    if length < shape[axis]:
        raise AoaError(
            "AOA302",
            f"pad={length} is shorter than axis {axis} of shape {shape}; unpad shortens",
        )
    extents = (*shape[:axis], length - shape[axis], *shape[axis + 1 :])
    zeros = Variable(extents, variable.dtype, whole(None, extents))
    return concat([variable, zeros], axis)


def unpad(variable: Variable, axis: int, length: int) -> tuple[Variable, Variable]:
    """The first ``length`` indices of an axis, and the rest."""
    axis = axis_of(axis, len(variable.shape))
    if length > variable.shape[axis]:
        raise AoaError(
            "AOA302",
            f"unpad={length} is longer than axis {axis} of shape {variable.shape}; pad lengthens",
        )
    first, rest = split(variable, axis, [length, variable.shape[axis] - length])
    return first, rest
