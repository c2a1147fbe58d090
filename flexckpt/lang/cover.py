# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Whether pieces overlap: the elements of a piece are a product of one set of indices per axis."""

from collections.abc import Sequence
from itertools import pairwise
from math import gcd

from flexckpt.pieces import Piece

_MANY = 1 << 20  # indices that are looked at one by one

Indices = range | frozenset[int]


def indices(piece: Piece, axis: int) -> Indices:
    """Where a piece lies on an axis of the destination."""
    start = piece.dst[axis]
    dims = sorted((d.dst_step, d.extent) for d in piece.dims if d.dst_axis == axis)
    if not dims:
        return range(start, start + 1)
    if len(dims) == 1:
        step, extent = dims[0]
        return range(start, start + step * extent, step)
    if all(a[0] * a[1] == b[0] for a, b in pairwise(dims)):
        step = dims[0][0]
        return range(start, start + dims[-1][0] * dims[-1][1], step)
    values = [start]
    for step, extent in dims:
        values = [v + step * i for v in values for i in range(extent)]
    return frozenset(values)


def disjoint(pieces: Sequence[Piece]) -> bool:
    """Whether no element is in two pieces; False, too, where that takes long to tell."""
    return len(pieces) < 2 or _disjoint(pieces, 0)


def _disjoint(pieces: Sequence[Piece], axis: int) -> bool:
    if axis == len(pieces[0].dst):
        return False
    groups: dict[Indices, list[Piece]] = {}
    for piece in pieces:
        groups.setdefault(indices(piece, axis), []).append(piece)
    return all(len(members) < 2 or _disjoint(members, axis + 1) for members in _apart(groups))


def _apart(groups: dict[Indices, list[Piece]]) -> list[list[Piece]]:
    """The pieces that share an index of the axis, for every such index once."""
    keys = list(groups)
    if all(isinstance(k, range) and k.step == 1 for k in keys):
        spans = sorted((k.start, k.stop) for k in keys if isinstance(k, range))
        if all(a[1] <= b[0] for a, b in pairwise(spans)):
            return list(groups.values())
        bounds = sorted({n for span in spans for n in span})
        sets: set[tuple[int, ...]] = {
            tuple([i for i, k in enumerate(keys) if low in k]) for low in bounds
        }
    elif sum(map(len, keys)) > _MANY:
        return [[p for members in groups.values() for p in members]]
    else:
        owners: dict[int, list[int]] = {}
        for i, key in enumerate(keys):
            for value in key:
                owners.setdefault(value, []).append(i)
        sets = {tuple(owner) for owner in owners.values()}
    return [[p for i in owner for p in groups[keys[i]]] for owner in sets if owner]


def common(a: Piece, b: Piece) -> int:
    """How many elements of the destination two pieces share."""
    count = 1
    for axis in range(len(a.dst)):
        count *= _shared(indices(a, axis), indices(b, axis))
        if not count:
            return 0
    return count


def _shared(x: Indices, y: Indices) -> int:
    if not isinstance(x, range) or not isinstance(y, range):
        return len(set(x) & set(y))
    low, high = max(x.start, y.start), min(x[-1], y[-1])
    divisor = gcd(x.step, y.step)
    if low > high or (y.start - x.start) % divisor:
        return 0
    step = x.step // divisor * y.step
    # x.start + k * x.step is in y for one k below y.step / divisor.
    k = (y.start - x.start) // divisor * pow(x.step // divisor, -1, y.step // divisor)
    first = x.start + k % (y.step // divisor) * x.step
    first += max(0, -((first - low) // step)) * step
    return 0 if first > high else (high - first) // step + 1
