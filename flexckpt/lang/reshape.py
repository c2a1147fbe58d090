# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reshaping a piece: its axes become one flat axis, which is then cut into the new axes."""

from flexckpt.boxes import c_strides
from flexckpt.pieces import Dim, Piece

MAX_PIECES = 4096  # into which one piece may fall


def reshape_piece(piece: Piece, old: tuple[int, ...], new: tuple[int, ...]) -> list[Piece] | None:
    """The pieces in shape ``new`` of the same elements in C order; None if they are too many."""
    steps = c_strides(old)
    start = sum(i * s for i, s in zip(piece.dst, steps, strict=True))
    dims = [d._replace(dst_axis=0, dst_step=d.dst_step * steps[d.dst_axis]) for d in piece.dims]
    pieces = [piece._replace(dst=(start,), dims=tuple(_fused(dims)))]
    for length in reversed(new[1:]):
        parts: list[Piece] = []
        for part in pieces:
            cut = _cut_axis(part, length)
            if cut is None or len(parts) + len(cut) > MAX_PIECES:
                return None
            parts += cut
        pieces = parts
    if not new:
        return [p._replace(dst=()) for p in pieces]
    return [p._replace(dims=tuple(_sorted(_fused(list(p.dims))))) for p in pieces]


def _sorted(dims: list[Dim]) -> list[Dim]:
    return sorted(dims, key=lambda d: (d.dst_axis, -d.dst_step))


def _fused(dims: list[Dim]) -> list[Dim]:
    """Dims of which one goes on where another ends, on both sides, as one."""
    out: list[Dim] = []
    for dim in _sorted(dims):
        if out:
            last = out[-1]
            if (
                last.src_axis == dim.src_axis
                and last.dst_axis == dim.dst_axis
                and last.src_step == dim.src_step * dim.extent
                and last.dst_step == dim.dst_step * dim.extent
            ):
                out[-1] = dim._replace(extent=dim.extent * last.extent)
                continue
        out.append(dim)
    return out


def _cut_axis(piece: Piece, n: int) -> list[Piece] | None:
    """Axis 0 becomes two axes, the second of length ``n``; the axes behind it move up by one."""
    start = piece.dst[0]
    inner = [d for d in piece.dims if d.dst_axis == 0 and d.dst_step % n]
    span = sum(d.dst_step * (d.extent - 1) for d in inner)
    if start % n + span < n:
        moved = []
        for d in piece.dims:
            if d.dst_axis:
                moved.append(d._replace(dst_axis=d.dst_axis + 1))
            elif d in inner:
                moved.append(d._replace(dst_axis=1))
            else:
                moved.append(d._replace(dst_step=d.dst_step // n))
        return [piece._replace(dst=(start // n, start % n, *piece.dst[1:]), dims=tuple(moved))]
    big = max(inner, key=lambda d: d.dst_step)
    k = piece.dims.index(big)
    beside = start % big.dst_step + span - big.dst_step * (big.extent - 1)
    if n % big.dst_step or beside >= big.dst_step:
        if big.extent > MAX_PIECES:
            return None
        parts = [_steps(piece, k, i, i + 1) for i in range(big.extent)]  # out of line with the cuts
    else:
        parts = _in_line(piece, k, n)
    out: list[Piece] = []
    for part in parts:
        cut = _cut_axis(part, n)
        if cut is None or len(out) + len(cut) > MAX_PIECES:
            return None
        out += cut
    return out


def _in_line(piece: Piece, k: int, n: int) -> list[Piece]:
    """A piece by its dim ``k``, whose steps divide ``n``: before, in, and behind whole blocks."""
    dim = piece.dims[k]
    per_block = n // dim.dst_step
    head = min((-(piece.dst[0] % n // dim.dst_step)) % per_block, dim.extent)
    blocks = (dim.extent - head) // per_block
    tail = head + blocks * per_block
    parts = []
    if head:
        parts.append(_steps(piece, k, 0, head))
    if blocks:
        outer = Dim(blocks, dim.src_axis, dim.src_step * per_block, 0, n)
        inner = Dim(per_block, dim.src_axis, dim.src_step, 0, dim.dst_step)
        dims = [d for j, d in enumerate(piece.dims) if j != k]
        dims += [d for d in (outer, inner) if d.extent > 1]
        parts.append(_steps(piece, k, head, tail)._replace(dims=tuple(dims)))
    if tail < dim.extent:
        parts.append(_steps(piece, k, tail, dim.extent))
    return parts


def _steps(piece: Piece, k: int, a: int, b: int) -> Piece:
    """Steps ``[a, b)`` of dim ``k`` only."""
    dim = piece.dims[k]
    src, dst = list(piece.src), list(piece.dst)
    src[dim.src_axis] += a * dim.src_step
    dst[dim.dst_axis] += a * dim.dst_step
    new = (dim._replace(extent=b - a),) if b - a > 1 else ()
    return piece._replace(
        src=tuple(src), dst=tuple(dst), dims=(*piece.dims[:k], *new, *piece.dims[k + 1 :])
    )
