# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which boxes of a tensor a place in a mesh holds. Integers only, the same answer on every rank.

A mesh dimension cuts one axis as ``torch.chunk`` does: parts of ``ceil(n / parts)``, the last ones
shorter or empty. Dimensions cut one after another, from left to right, what the earlier ones left.
A strided cut first cuts into ``factor`` parts, and takes its share of each; so FSDP over tensor
parallelism is written, where the dimension on the right has cut first.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple


class Cut(NamedTuple):
    """A mesh dimension cuts an axis of the tensor, after cutting it into ``factor`` parts."""

    axis: int
    factor: int = 1


class LocalBox(NamedTuple):
    """A box of the global tensor, and where it starts in the local one."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    start: tuple[int, ...]


class Step(NamedTuple):
    """A cut of one axis: into how many parts, in strides of ``factor``, and which part is taken."""

    parts: int
    factor: int
    taken: int


Run = tuple[int, int]
Ints = tuple[int, ...]
Cuts = tuple[Cut | None, ...]


@lru_cache(maxsize=65536)
def local_boxes(
    global_shape: Ints, mesh_shape: Ints, cuts: Cuts, coordinate: Ints
) -> tuple[LocalBox, ...]:
    """The boxes of a tensor that lie at ``coordinate`` of a mesh, in the order of the local tensor.

    Args:
        global_shape: of the tensor.
        mesh_shape: of the mesh.
        cuts: what each mesh dimension does; None where it replicates.
        coordinate: the place in the mesh.

    Returns:
        At least one box: where nothing is left, an empty one.
    """
    axes = []
    for axis, n in enumerate(global_shape):
        steps = _steps(axis, mesh_shape, cuts, coordinate)
        runs = axis_runs(n, steps)
        starts, length = [], 0
        for a, b in runs:
            starts.append(length)
            length += b - a
        axes.append(list(zip(runs, starts, strict=True)) or [((n, n), 0)])
    if any(a == b for parts in axes for (a, b), _ in parts):
        axes = [parts[:1] for parts in axes]
    boxes = []
    for parts in product(*axes):
        offset = tuple(a for (a, _), _ in parts)
        shape = tuple(b - a for (a, b), _ in parts)
        boxes.append(LocalBox(offset, shape, tuple(start for _, start in parts)))
    return tuple(boxes)


@lru_cache(maxsize=65536)
def local_shape(global_shape: Ints, mesh_shape: Ints, cuts: Cuts, coordinate: Ints) -> Ints:
    """The shape of the local tensor at ``coordinate`` of a mesh."""
    return tuple(
        sum(b - a for a, b in axis_runs(n, _steps(axis, mesh_shape, cuts, coordinate)))
        for axis, n in enumerate(global_shape)
    )


def coordinates(mesh_shape: Sequence[int]) -> Iterator[Ints]:
    """Every place of a mesh, in C order."""
    return product(*map(range, mesh_shape))


@lru_cache(maxsize=4096)
def unclear_axis(global_shape: Ints, mesh_shape: Ints, cuts: Cuts) -> int | None:
    """An axis whose strided cuts can be read in two ways that differ, or None.

    Read from left to right, a strided cut takes its share of ``factor`` equal parts. FSDP writes it
    for an axis that the dimensions on its right have cut before. Where these did not cut evenly,
    the two are not the same, and nothing in the placements tells which one made the tensor.
    """
    for axis, n in enumerate(global_shape):
        steps = _steps(axis, mesh_shape, cuts, (0,) * len(mesh_shape))
        if any(s.factor > 1 for s in steps) and not _readings_agree(n, steps):
            return axis
    return None


def _steps(axis: int, mesh_shape: Ints, cuts: Cuts, coordinate: Ints) -> tuple[Step, ...]:
    return tuple(
        Step(parts, cut.factor, index)
        for parts, cut, index in zip(mesh_shape, cuts, coordinate, strict=True)
        if cut is not None and cut.axis == axis and parts > 1
    )


def axis_runs(n: int, steps: tuple[Step, ...]) -> tuple[Run, ...]:
    """The ranges of ``range(n)`` that some cuts leave, in local order; neighbors are joined."""
    runs: list[Run] = [(0, n)] if n else []
    for step in steps:
        length = sum(b - a for a, b in runs)
        kept: list[Run] = []
        for k in range(step.factor):
            first, last = _chunk(length, step.factor, k)
            a, b = _chunk(last - first, step.parts, step.taken)
            kept += _select(runs, first + a, first + b)
        runs = _joined(kept)
    return tuple(runs)


def _chunk(n: int, parts: int, index: int) -> Run:
    """Part ``index`` of ``range(n)`` as ``torch.chunk`` cuts it."""
    size = -(-n // parts)
    return min(size * index, n), min(size * (index + 1), n)


def _select(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """Elements ``[start, stop)`` of some runs laid end to end."""
    found = []
    for a, b in runs:
        low, high = max(start, 0), min(stop, b - a)
        if low < high:
            found.append((a + low, a + high))
        start, stop = start - (b - a), stop - (b - a)
    return found


def _joined(runs: Sequence[Run]) -> list[Run]:
    joined: list[Run] = []
    for a, b in runs:
        if joined and joined[-1][1] == a:
            joined[-1] = (joined[-1][0], b)
        else:
            joined.append((a, b))
    return joined


def _readings_agree(n: int, steps: tuple[Step, ...]) -> bool:
    order = _order_of_cuts(steps)
    if order is None:  # no order of plain cuts is meant: only one way to read it
        return True
    for place in coordinates([s.parts for s in steps]):
        placed = [s._replace(taken=i) for s, i in zip(steps, place, strict=True)]
        plain = tuple(placed[k]._replace(factor=1) for k in order)
        if axis_runs(n, tuple(placed)) != axis_runs(n, plain):
            return False
    return True


def _order_of_cuts(steps: Sequence[Step]) -> list[int] | None:
    """The order in which plain cuts are these strided ones for sizes that divide, or None.

    The factor of a cut is the number of parts made before it by dimensions on its right.
    """
    order: list[int] = []
    for k in reversed(range(len(steps))):
        before = 1
        for position in range(len(order) + 1):
            if before == steps[k].factor:
                order.insert(position, k)
                break
            if position < len(order):
                before *= steps[order[position]].parts
        else:
            return None
    return order
