# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A routine: a statement without macros, as steps over numbered slots instead of names.

All statements of one form (same attributes, as many names) share a routine. Temporaries are slots,
so no name that a user can write reaches them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple


class Step(NamedTuple):
    """One operation: slots read, slots written, and what it needs to know.

    Attributes:
        note: attributes as they are printed.
    """

    op: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    arg: Any
    note: str


class Label(NamedTuple):
    """How a temporary is printed: a format string over the labels of other slots."""

    text: str
    slots: tuple[int, ...]


class Routine(NamedTuple):
    """Slots are numbered: names on the left, names on the right, temporaries."""

    lefts: int
    rights: int
    labels: tuple[Label, ...]
    steps: tuple[Step, ...]

    def lines(self, left: Sequence[str], right: Sequence[str]) -> list[str]:
        """The steps as statements, with the names of one statement."""
        names = [*left, *right]
        for label in self.labels:
            names.append(label.text.format(*[names[i] for i in label.slots]))

        def listed(slots: Sequence[int]) -> str:
            return ", ".join([names[i] for i in slots])

        lines = [f"{listed(s.left)} -> {listed(s.right)}{s.note}" for s in self.steps]
        return list(dict.fromkeys(lines))  # ^T of one name in two places is one line


class Builder:
    """Collects the steps of a routine."""

    def __init__(self, lefts: int, rights: int) -> None:
        self.lefts = lefts
        self.rights = rights
        self.labels: list[Label] = []
        self.steps: list[Step] = []

    def temporary(self, text: str, *slots: int) -> int:
        self.labels.append(Label(text, slots))
        return self.lefts + self.rights + len(self.labels) - 1

    def step(
        self, op: str, left: Sequence[int], right: Sequence[int], arg: Any = None, note: str = ""
    ) -> None:
        self.steps.append(Step(op, tuple(left), tuple(right), arg, note))

    def concat(
        self, left: Sequence[int], right: int, axis: int, heads: tuple[int, ...] | None = None
    ) -> None:
        """``heads``: lengths on the axis must be in these proportions."""
        self.step("concat", left, (right,), (axis, heads, None), f", axis={axis}")

    def split(self, left: int, right: Sequence[int], axis: int) -> None:
        self.step("split", (left,), right, (axis, None), f", axis={axis}")

    def routine(self) -> Routine:
        return Routine(self.lefts, self.rights, tuple(self.labels), tuple(self.steps))
