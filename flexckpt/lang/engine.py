# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs batches over variables, and knows what was written, read and dropped."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flexckpt.errors import AoaError
from flexckpt.lang import ops
from flexckpt.lang.expand import Row
from flexckpt.lang.lower import Batch
from flexckpt.lang.routine import Routine
from flexckpt.model import TensorSpec, dtype_name
from flexckpt.pieces import Piece, Variable, whole


class _Recipe(NamedTuple):
    """What a routine makes of untouched tensors of given shapes, by positions of operands."""

    shape: tuple[int, ...]
    dtype: str
    pieces: list[tuple[int, tuple[Any, ...]]]  # the operand, and all of the piece behind its source


_NO_OPERAND = (
    -1
)  # the position of a constant's operand: a name list that ends in None has None there


class Engine:
    """The state of a program that runs.

    Attributes:
        variables: written names and their variables, in the order in which they were last written.
        unread: names of variables that no statement has read since.
        used: tensors of the source that were read.
        dropped: tensors of the source that were deleted.
        kept: names that were said to keep their values.
        lost: parts of tensors that ``unpad`` cut off.
        row: the names of the row that runs.
    """

    def __init__(self, source: Mapping[str, TensorSpec]) -> None:
        self._source = source
        kinds: dict[tuple[tuple[int, ...], Any], int] = {}
        self._kind = {
            name: kinds.setdefault((tuple(spec.shape), spec.dtype), len(kinds))
            for name, spec in source.items()
        }
        self._wholes = [_whole_of(shape, dtype) for shape, dtype in kinds]
        self._recipes: dict[int, dict[tuple[int, ...], list[_Recipe]]] = {}
        self._routines: list[Routine] = []  # keeps them alive: recipes are filed by their id
        self.variables: dict[str, Variable] = {}
        self.unread: set[str] = set()
        self.used: set[str] = set()
        self.dropped: set[str] = set()
        self.gone: set[str] = set()
        self.kept: set[str] = set()
        self.lost: list[Piece] = []
        self.row: Row = (), ()

    def run(self, batch: Batch, lenient: bool) -> None:
        """Execute the rows of a batch; :attr:`row` tells how far it came.

        Args:
            lenient: dropping an unknown tensor is no error.

        Raises:
            AoaError: AOA301, AOA302, AOA303, AOA307, without a place.
        """
        if batch.routine is None:
            for row in batch.rows:
                self.row = row
                if batch.keeps:
                    self.kept.update(row[1])
                else:
                    for name in row[0]:
                        self._drop(name, lenient)
            return
        variables, unread, gone = self.variables, self.unread, self.gone
        untouched = self._untouched(batch.routine)
        for row in batch.rows:
            self.row = row
            left, right = row
            results = untouched(left)
            if results is None:
                results = self._results(batch.routine, left)
            for name, variable in zip(right, results, strict=False):
                variables.pop(name, None)  # so that the order is that of the last writes
                variables[name] = variable
                unread.add(name)
                if gone:
                    gone.discard(name)

    def whole(self, name: str) -> Variable:
        """A tensor of the source as it is."""
        shape, dtype, tail = self._wholes[self._kind[name]]
        new = tuple.__new__
        pieces = [] if tail is None else [new(Piece, (name, *tail))]
        return new(Variable, (shape, dtype, pieces))

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

    def _untouched(self, routine: Routine) -> Callable[[Sequence[str]], list[Variable] | None]:
        """A function from names to results; None unless all are untouched tensors of the source.

        A routine does the same to all operands that look the same, so it runs once for them.
        """
        variables, used, lost = self.variables, self.used, self.lost
        dropped, gone = self.dropped, self.gone
        kind_of, rights, new = self._kind.get, routine.rights, tuple.__new__
        recipes = self._recipes.setdefault(id(routine), {})
        self._routines.append(routine)

        def results(left: Sequence[str]) -> list[Variable] | None:
            key = []
            for name in left:
                kind = kind_of(name)
                if kind is None or name in variables or name in dropped or name in gone:
                    return None
                key.append(kind)
            used.update(left)
            kinds = tuple(key)
            recipe = recipes.get(kinds)
            if recipe is None:
                recipe = recipes[kinds] = self._learn(routine, kinds)
            names = (*left, None)
            out = [
                new(
                    Variable,
                    (shape, dtype, [new(Piece, (names[i], *tail)) for i, tail in pieces]),
                )
                for shape, dtype, pieces in recipe
            ]
            for extra in out[rights:]:
                lost.extend(extra.pieces)
            return out

        return results

    def _results(self, routine: Routine, left: Sequence[str]) -> list[Variable]:
        results = execute(routine, [self._read(name) for name in left])
        for extra in results[routine.rights :]:
            self.lost += extra.pieces
        return results

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
            shape, dtype, _ = self._wholes[kind]
            operands.append(Variable(shape, dtype, whole(str(i), shape)))
        return [
            _Recipe(
                v.shape,
                v.dtype,
                [
                    (_NO_OPERAND if p.source is None else int(p.source), tuple(p[1:]))
                    for p in v.pieces
                ],
            )
            for v in execute(routine, operands)
        ]


def _whole_of(
    shape: Sequence[int], dtype: Any
) -> tuple[tuple[int, ...], str, tuple[Any, ...] | None]:
    """Shape, dtype, and the piece of an untouched tensor without its source, or None."""
    shape = tuple(shape)
    pieces = whole("", shape)
    name = "" if dtype is None else dtype_name(dtype)
    return shape, name, tuple(pieces[0][1:]) if pieces else None


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


_NO_AXIS = "several names on one side need axis="


def _concat(operands: list[Variable], arg: Any, _n: int) -> list[Variable]:
    axis, heads, sizes = arg
    if axis is None:
        raise AoaError("AOA103", _NO_AXIS)
    if heads is not None or sizes is not None:
        ops.check_lengths(operands, axis, heads, sizes)
    return [ops.concat(operands, axis)]


def _split(operands: list[Variable], arg: Any, n: int) -> list[Variable]:
    (operand,) = operands
    axis, sizes = arg
    if axis is None:
        raise AoaError("AOA103", _NO_AXIS)
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
