# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs batches over variables: reads names, keeps what was written, knows what was used and dropped."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flexckpt.errors import AoaError
from flexckpt.lang import ops
from flexckpt.lang.lower import Batch
from flexckpt.lang.routine import Routine
from flexckpt.model import TensorSpec, dtype_name
from flexckpt.pieces import Piece, Variable, whole


class _Recipe(NamedTuple):
    """What a routine makes of untouched tensors of given shapes: pieces by position of the operand."""

    shape: tuple[int, ...]
    dtype: str
    pieces: list[tuple[int | None, Piece]]


class Engine:
    """The state of a program that runs.

    Attributes:
        variables: written names and their variables, in the order in which they were last written.
        unread: names of variables that no statement has read since.
        used: tensors of the source that were read.
        dropped: tensors of the source that were deleted.
        kept: names that were said to keep their values.
        lost: parts of tensors that ``unpad`` cut off.
    """

    def __init__(self, source: Mapping[str, TensorSpec]) -> None:
        self._source = source
        kinds: dict[tuple[tuple[int, ...], Any], int] = {}
        self._kind = {
            name: kinds.setdefault((spec.shape, spec.dtype), len(kinds))
            for name, spec in source.items()
        }
        self._shapes = [
            (tuple(shape), "" if dtype is None else dtype_name(dtype)) for shape, dtype in kinds
        ]
        self._recipes: dict[tuple[int, ...], list[_Recipe]] = {}
        self._routines: list[Routine] = []  # keeps them alive: recipes are filed by their id
        self.variables: dict[str, Variable] = {}
        self.unread: set[str] = set()
        self.used: set[str] = set()
        self.dropped: set[str] = set()
        self.gone: set[str] = set()
        self.kept: set[str] = set()
        self.lost: list[Piece] = []

    def run(self, batch: Batch, row: tuple[Sequence[str], Sequence[str]], lenient: bool) -> None:
        """Execute one row of a batch.

        Args:
            lenient: dropping an unknown tensor is no error.

        Raises:
            AoaError: AOA301, AOA302, AOA303, AOA307, without a place.
        """
        left, right = row
        if batch.routine is None:
            if batch.keeps:
                self.kept.update(right)
            else:
                for name in left:
                    self._drop(name, lenient)
            return
        for name, variable in zip(right, self._results(batch.routine, left), strict=True):
            if name in self.variables:
                del self.variables[name]
            self.variables[name] = variable
            self.unread.add(name)
            self.gone.discard(name)

    def whole(self, name: str) -> Variable:
        """A tensor of the source as it is."""
        shape, dtype = self._shapes[self._kind[name]]
        return Variable(shape, dtype, whole(name, shape))

    def _drop(self, name: str, lenient: bool) -> None:
        if name in self.variables:
            del self.variables[name]
            self.unread.discard(name)
            self.gone.add(name)
            return
        if name not in self._source:
            if lenient:
                return
            raise AoaError("AOA301", f"{name} is neither in the source nor written before")
        if name in self.used:
            raise AoaError("AOA307", f"{name} was used before, so it cannot be dropped")
        self.dropped.add(name)

    def _results(self, routine: Routine, left: Sequence[str]) -> list[Variable]:
        variables, kind_of = self.variables, self._kind
        kinds = []
        for name in left:
            if name in variables:
                break
            kind = kind_of.get(name)
            if kind is None or name in self.dropped:
                break
            kinds.append(kind)
        else:
            self.used.update(left)
            key = id(routine), *kinds
            recipes = self._recipes.get(key)
            if recipes is None:
                recipes = self._recipes[key] = self._learn(routine, kinds)
            return self._follow(recipes, left, routine.rights)
        operands = [self._read(name) for name in left]
        results = execute(routine, operands)
        for extra in results[routine.rights :]:
            self.lost += extra.pieces
        return results[: routine.rights]

    def _read(self, name: str) -> Variable:
        variable = self.variables.get(name)
        if variable is not None:
            self.unread.discard(name)
            return variable
        if name in self.dropped or name in self.gone:
            raise AoaError("AOA307", f"{name} was dropped before")
        if name not in self._kind:
            raise AoaError("AOA301", f"{name} is neither in the source nor written before")
        self.used.add(name)
        return self.whole(name)

    def _learn(self, routine: Routine, kinds: Sequence[int]) -> list[_Recipe]:
        """Run a routine once for all rows whose operands look the same."""
        operands = []
        for i, kind in enumerate(kinds):
            shape, dtype = self._shapes[kind]
            operands.append(Variable(shape, dtype, whole(str(i), shape)))
        recipes = []
        for v in execute(routine, operands):
            pieces = [(None if p.source is None else int(p.source), p) for p in v.pieces]
            recipes.append(_Recipe(v.shape, v.dtype, pieces))
        self._routines.append(routine)
        return recipes

    def _follow(
        self, recipes: Sequence[_Recipe], left: Sequence[str], rights: int
    ) -> list[Variable]:
        new = tuple.__new__
        out = []
        for shape, dtype, recipe in recipes:
            pieces = [
                p if i is None else new(Piece, (left[i], p[1], p[2], p[3], p[4], p[5]))
                for i, p in recipe
            ]
            out.append(new(Variable, (shape, dtype, pieces)))
        if len(out) > rights:
            for extra in out[rights:]:
                self.lost += extra.pieces
        return out[:rights]


def execute(routine: Routine, operands: Sequence[Variable]) -> list[Variable]:
    """The variables on the right of a routine, and what it cut off."""
    slots: list[Any] = [*operands, *[None] * (routine.rights + len(routine.labels))]
    lost = []
    for op, left, right, arg, _ in routine.steps:
        read = [slots[i] for i in left]
        results = _OPS[op](read, arg, len(right))
        for i, result in zip(right, results, strict=True):
            slots[i] = result
        if op == "unpad":
            lost.append(results[1])
    return [slots[routine.lefts + i] for i in range(routine.rights)] + lost


def _concat(operands: list[Variable], arg: Any, _n: int) -> list[Variable]:
    axis, heads = arg
    if heads is not None:
        k = ops.axis_of(axis, len(operands[0].shape))
        lengths = [v.shape[k] if k < len(v.shape) else 0 for v in operands]
        if any(n * heads[0] != lengths[0] * h for n, h in zip(lengths, heads, strict=True)):
            raise AoaError(
                "AOA302",
                f"lengths {lengths} on axis {axis} are not in the proportions {list(heads)} of their pieces",
            )
    return [ops.concat(operands, axis)]


def _split(operands: list[Variable], arg: Any, n: int) -> list[Variable]:
    (operand,) = operands
    axis, sizes = arg
    if sizes is None:
        sizes = ops.equal_sizes(operand, axis, n)
    return ops.split(operand, axis, sizes)


_OPS: dict[str, Any] = {
    "concat": _concat,
    "split": _split,
    "rename": lambda operands, arg, n: operands,
    "permute": lambda operands, arg, n: [ops.permute(operands[0], arg)],
    "cast": lambda operands, arg, n: [ops.cast(operands[0], arg[1])],
    "stack": lambda operands, arg, n: [ops.stack(operands, arg)],
    "unstack": lambda operands, arg, n: ops.unstack(operands[0], arg, n),
    "reshape": lambda operands, arg, n: [ops.reshape(operands[0], arg)],
    "pad": lambda operands, arg, n: [ops.pad(operands[0], *arg)],
    "unpad": lambda operands, arg, n: list(ops.unpad(operands[0], *arg)),
}
