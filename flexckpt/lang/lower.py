# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From rows of names to batches that run: every row gets its routine, rows in line share one."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flexckpt.errors import AoaError
from flexckpt.lang.counts import Counter
from flexckpt.lang.expand import Group, Row
from flexckpt.lang.macros import Form, build
from flexckpt.lang.routine import Routine
from flexckpt.lang.tree import Statement

_BY_PARTS = ("fused_ffn", "fused_qkv_old")


class Batch(NamedTuple):
    """Rows of names that one routine turns into variables, in order.

    Attributes:
        routine: None for a statement with ``_``.
        keeps: it is ``_ -> B``; else, without a routine, ``A -> _``.
    """

    statement: Statement
    routine: Routine | None
    keeps: bool
    rows: list[Row]

    def lines(self) -> list[str]:
        """The batch as plain statements."""
        if self.routine is None:
            if self.keeps:
                return [f"_ -> {', '.join(right)}" for _, right in self.rows]
            return [f"{', '.join(left)} -> _" for left, _ in self.rows]
        return [line for row in self.rows for line in self.routine.lines(*row)]


class Lowering:
    """Builds routines, each form once."""

    def __init__(self, counter: Counter, axis: int) -> None:
        self._counter = counter
        self._axis = axis
        self._built: dict[Form, Routine] = {}

    def lower(self, group: Group) -> list[Batch]:
        """The batches of a group.

        Raises:
            AoaError: AOA103, AOA203, AOA204, without a place.
        """
        statement = group.statement
        if group.drops or group.keeps:
            return [Batch(statement, None, group.keeps, group.rows)]
        attributes = tuple([(a.key, a.value, a.raw) for a in statement.attributes])
        form = Form(statement.flag, group.left, group.right, attributes, self._axis)
        if statement.flag not in _BY_PARTS:
            return [Batch(statement, self._routine(form), False, group.rows)]
        batches: list[Batch] = []
        last = None
        for row in group.rows:
            parts = self._parts(group, row)
            if parts == last:
                batches[-1].rows.append(row)
            else:
                routine = self._routine(form._replace(parts=parts))
                batches.append(Batch(statement, routine, False, [row]))
                last = parts
        return batches

    def _routine(self, form: Form) -> Routine:
        routine = self._built.get(form)
        if routine is None:
            routine = self._built[form] = build(form)
        return routine

    def _parts(self, group: Group, row: Row) -> tuple[int, int]:
        """Blocks of the fused tensor in the source and in the destination."""
        left, right = row
        tp: Any = group.statement.get("tp")
        axis = group.statement.get("axis")
        axis = self._axis if not isinstance(axis, int) else axis
        fused = len(left) == 1, len(right) == 1
        if tp is not None:
            if all(fused) and not isinstance(tp, tuple):
                raise AoaError(
                    "AOA104",
                    "tp from one layout to another has two numbers: tp=[source,destination]",
                )
            source, dest = tp if isinstance(tp, tuple) else (tp, tp)
        else:
            source = self._side(left, group.left, axis, fused[0], self._counter.in_source)
            dest = self._side(right, group.right, axis, fused[1], self._counter.in_dest)
        return source if fused[0] else 1, dest if fused[1] else 1

    @staticmethod
    def _side(
        names: Sequence[str],
        transposed: Sequence[bool],
        axis: int,
        fused: bool,
        count: Callable[[str, int], int],
    ) -> int:
        if not fused:
            return 1
        return count(names[0], -1 - axis if transposed[0] else axis)
