# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How many parts a fused tensor has: distinct offsets on its own axis, found through renames."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.expand import Group, Row
from flexckpt.model import TensorSpec

_Link = tuple[Group, Row]


class Counter:
    """Counts parts for the statements of one program."""

    def __init__(
        self,
        groups: Sequence[Group],
        source: Mapping[str, TensorSpec],
        dest: Mapping[str, TensorSpec] | None,
    ) -> None:
        self._groups = groups
        self._source = source
        self._dest: Mapping[str, TensorSpec] = dest or {}
        self._readers: dict[str, _Link] = {}
        self._writers: dict[str, _Link] = {}

    def in_source(self, name: str, axis: int) -> int:
        """Parts of an operand, from the tensor of the source that it comes from."""
        return self._count(name, axis, self._source, forward=False)

    def in_dest(self, name: str, axis: int) -> int:
        """Parts of a result, from the destination that it goes to."""
        return self._count(name, axis, self._dest, forward=True)

    def _count(self, name: str, axis: int, specs: Mapping[str, TensorSpec], forward: bool) -> int:
        if not specs:
            return 1
        path: list[_Link] = []
        seen = {name}
        key = name
        while key not in specs:
            self._link()
            link = (self._readers if forward else self._writers).get(key)
            if link is None:
                return 1
            side = link[1][1] if forward else link[1][0]
            if len(side) != 1 or side[0] in seen:
                if all(_whole(specs[n]) for n in side if n in specs):
                    return 1
                raise _ambiguous(name, f"it has to do with {len(side)} tensors")
            path.append(link)
            key = side[0]
            seen.add(key)
        spec = specs[key]
        if _whole(spec):
            return 1
        return _parts(name, key, spec, _follow(name, axis, path, len(spec.shape), forward))

    def _link(self) -> None:
        if self._readers:
            return
        for group in self._groups:
            if group.drops or group.keeps:
                continue
            for row in group.rows:
                for name in row[0]:
                    self._readers[name] = group, row
                for name in row[1]:
                    self._writers[name] = group, row


def _whole(spec: TensorSpec) -> bool:
    return spec.shards is None or len({tuple(offset) for offset, _ in spec.shards}) <= 1


def _parts(name: str, key: str, spec: TensorSpec, axis: int) -> int:
    rank = len(spec.shape)
    if not -rank <= axis < rank:
        raise AoaError("AOA302", f"axis {axis} is outside {key} of {rank} dimensions; state axis=")
    assert spec.shards is not None
    ranges = {(offset[axis], shape[axis]) for offset, shape in spec.shards if 0 not in shape}
    if len({length for _, length in ranges}) > 1:
        raise _ambiguous(name, f"the shards of {key} on axis {axis} are of unequal lengths")
    if spec.by_mesh and len(ranges) > 1:
        raise _ambiguous(
            name,
            f"the placements of {key} cut axis {axis} into {len(ranges)}, but do not tell whether "
            f"each part is fused by itself (tp={len(ranges)}) or only the whole (tp=1)",
        )
    return max(1, len(ranges))


def _ambiguous(name: str, why: str) -> AoaError:
    return AoaError("AOA204", f"{name} has no evident number of parts: {why}; state tp=")


def _follow(name: str, axis: int, path: Sequence[_Link], rank: int, forward: bool) -> int:
    """The axis at the end of a path on which ``axis`` of its beginning lies.

    Args:
        rank: of the tensor at the end.
    """
    steps = [_effect(name, group, row, forward) for group, row in path]
    for kind, _ in steps:  # the rank at the beginning
        rank += {"remove": 1, "insert": -1}.get(kind, 0)
    if not -rank <= axis < rank:
        raise AoaError("AOA302", f"axis {axis} is outside {name} of {rank} dimensions; state axis=")
    axis %= rank
    for kind, arg in steps:
        if kind == "insert":
            rank += 1
            axis += axis >= arg % rank
        elif kind == "remove":
            if axis == arg % rank:
                raise _ambiguous(name, "its axis is taken apart")
            axis -= axis > arg % rank
            rank -= 1
        elif kind == "reverse":
            axis = rank - 1 - axis
        elif kind == "permute":
            axis = arg.index(axis) if axis in arg else axis
        elif kind == "concat" and arg % rank == axis:
            raise _ambiguous(name, "it is joined with others on its axis")
    return axis


def _effect(name: str, group: Group, row: Row, forward: bool) -> tuple[str, Any]:
    """What a statement does to the axes of a tensor on its way along a path."""
    statement = group.statement
    get = statement.get
    transposed = any(group.left) or any(group.right)
    if get("reshape") is not None:
        raise _ambiguous(name, "it is reshaped")
    stack = get("stack") if get("stack") is not None else None
    if statement.flag == "stack":
        stack = get("axis") or 0
    unstack = get("unstack") if get("unstack") is not None else None
    if statement.flag == "unstack":
        unstack = get("axis") or 0
    permute = get("permute")
    several = len(row[0]) > 1 or len(row[1]) > 1
    effects: list[tuple[str, Any]] = []
    if transposed:
        effects.append(("reverse", None))
    if permute is not None:
        assert isinstance(permute, tuple)
        order = permute if forward else tuple(permute.index(k) for k in range(len(permute)))
        effects.append(("permute", order) if permute else ("reverse", None))
    if stack is not None:
        effects.append(("insert" if forward else "remove", stack))
    if unstack is not None:
        effects.append(("remove" if forward else "insert", unstack))
    if several and stack is None and unstack is None:
        effects.append(("concat", get("axis") or 0))
    if len(effects) > 1:
        raise _ambiguous(name, "it is transposed and joined in one statement")
    return effects[0] if effects else ("same", None)
