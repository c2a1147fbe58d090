# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The inverse of a program: exactly, from its evaluated pieces, or statement by statement."""

from collections.abc import Mapping
from functools import lru_cache
from math import prod

from flexckpt.boxes import Box
from flexckpt.errors import AoaError
from flexckpt.lang.cover import common, disjoint, indices
from flexckpt.lang.program import Program
from flexckpt.lang.tree import Attribute, Misplaced, Statement
from flexckpt.model import TensorSpec, dtype_name
from flexckpt.pieces import Dim, Piece, Variable, restrict


def invert(program: Program, source: Mapping[str, TensorSpec]) -> Program:
    """The program that makes the tensors of ``source`` out of what ``program`` makes of them.

    Where the program made several copies, the first is read, and the others are the ``twins``.

    Args:
        source: the tensors that ``program`` was compiled for.

    Raises:
        AoaError: AOA401, where some elements of a tensor cannot be had back.
    """
    back: dict[str, list[Piece]] = {name: [] for name in source}
    for key, variable in program.outputs.items():
        for piece in variable.pieces:
            if piece.source is not None:
                dtype = _said(source[piece.source])
                back[piece.source].append(_turned(key, piece, dtype))
    lost: dict[str, list[Piece]] = {}
    for piece in program.lost:
        if piece.source is not None:
            dtype = _said(source[piece.source])
            zeros = _turned("", piece, dtype)._replace(source=None, casts=())
            lost.setdefault(piece.source, []).append(zeros)
    outputs: dict[str, Variable] = {}
    twins: dict[str, list[Piece]] = {}
    missing = []
    for name, spec in source.items():
        numel = prod(spec.shape)
        pieces = back[name]
        if not pieces and numel:
            if name not in program.dropped:
                missing.append(name)
            continue
        if name in program.dropped:
            continue
        if len(pieces) > 1 or name in lost:
            pieces, again = _tiling(name, numel, pieces, lost.get(name, []))
            if again:
                twins[name] = again
        if sum(p.numel for p in pieces) != numel:
            raise AoaError(
                "AOA401",
                f"the program cannot be inverted: {name} has {numel} elements, of which only "
                f"{sum(p.numel for p in pieces)} are in its results",
            )
        dtype = _said(spec) or _dtype_of(pieces, program.outputs)
        outputs[name] = Variable(tuple(spec.shape), dtype, pieces)
    return Program(
        outputs,
        kept=program.dropped,
        dropped=program.kept,
        identity=program.identity,
        missing=tuple(missing),
        unexpected=program.missing,
        twins=twins,
        text=program.text,
        batches=program.batches,
    )


def _said(spec: TensorSpec) -> str:
    """The dtype of a description; empty if it leaves it open."""
    return "" if spec.dtype is None else dtype_name(spec.dtype)


def _dtype_of(pieces: list[Piece], sources: Mapping[str, Variable]) -> str:
    """The dtype of what is read."""
    for piece in pieces:
        if piece.source is not None:
            return piece.casts[-1] if piece.casts else sources[piece.source].dtype
    return ""


def _turned(key: str, piece: Piece, dtype: str) -> Piece:
    """A piece read from its destination ``key`` into its source of ``dtype``."""
    casts = piece.casts[-2::-1]
    if piece.casts and dtype:
        casts = (*casts, dtype)
    return Piece(key, piece.dst, piece.src, _turned_dims(piece.dims), casts, 0.0)


@lru_cache(4096)
def _turned_dims(dims: tuple[Dim, ...]) -> tuple[Dim, ...]:
    turned = [Dim(d.extent, d.dst_axis, d.dst_step, d.src_axis, d.src_step) for d in dims]
    return tuple(sorted(turned, key=lambda d: (d.dst_axis, -d.dst_step)))


def _tiling(
    name: str, numel: int, pieces: list[Piece], zeros: list[Piece]
) -> tuple[list[Piece], list[Piece]]:
    """Pieces that do not overlap, the first ones first, and those that they make superfluous."""
    if not zeros and sum(p.numel for p in pieces) == numel and disjoint(pieces):
        return pieces, []
    taken: list[Piece] = []
    again: list[Piece] = []
    for piece in (*pieces, *zeros):
        new = [piece]
        for other in taken:
            cut = [_without(name, p, other) for p in new]
            new = [p for outside, _ in cut for p in outside]
            again += [p for _, inside in cut for p in inside if p.source is not None]
        taken += new
    return taken, again


def _without(name: str, piece: Piece, other: Piece) -> tuple[list[Piece], list[Piece]]:
    """The parts of a piece outside of another, and those inside."""
    shared = common(piece, other)
    if not shared:
        return [piece], []
    if shared == piece.numel:
        return [], [piece]
    spans = [indices(other, k) for k in range(len(other.dst))]
    if not all(isinstance(s, range) and s.step == 1 for s in spans):
        raise AoaError(
            "AOA401",
            f"the program cannot be inverted: its results hold parts of {name} that overlap in a "
            f"pattern",
        )
    box = Box(tuple([min(s) for s in spans]), tuple([max(s) + 1 for s in spans]))
    own = [indices(piece, k) for k in range(len(piece.dst))]
    around = Box(tuple([min(s) for s in own]), tuple([max(s) + 1 for s in own]))
    outside = [p for rest in around.subtract(box) for p in restrict(piece, "dst", rest)]
    return outside, restrict(piece, "dst", box)


_SWAPPED = {
    "stack": "unstack",
    "unstack": "stack",
    "src_dtype": "dst_dtype",
    "dst_dtype": "src_dtype",
}
_ONE_WAY = {
    "dtype": "a cast needs src_dtype= and dst_dtype= to be turned around",
    "reshape": "what reshape makes has no way back without a description of the destination",
    "pad": "what was padded has no way back without a description of the destination",
    "unpad": "what was cut off has no way back without a description of the destination",
}


def turn(statement: Statement) -> Statement:
    """The inverse of one statement, on the tree.

    Raises:
        Misplaced: AOA401.
    """
    attributes = []
    for a in statement.attributes:
        if a.key in _ONE_WAY:
            message = f"the statement cannot be inverted: {_ONE_WAY[a.key]}"
            raise Misplaced("AOA401", message, a.span)
        attributes.append(_turned_attribute(a))
    flag = statement.flag
    if flag in _SWAPPED:
        flag = _SWAPPED[flag]
    return statement._replace(
        left=statement.right,
        right=statement.left,
        flag=flag,
        attributes=tuple(attributes),
        offset=-statement.offset,
    )


def _turned_attribute(a: Attribute) -> Attribute:
    if a.key == "permute" and isinstance(a.value, tuple):
        order = tuple([a.value.index(k) for k in range(len(a.value))])
        return a._replace(value=order, raw=f"'[{','.join(map(str, order))}]'")
    if a.key == "tp" and isinstance(a.value, tuple):
        value = a.value[::-1]
        return a._replace(value=value, raw=f"[{value[0]},{value[1]}]")
    return a._replace(key=_SWAPPED.get(a.key, a.key))
