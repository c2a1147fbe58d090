# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the names of a statement may be: ``_`` alone, of like placeholders, none written twice."""

from collections.abc import Sequence

from flexckpt.lang.names import PLACEHOLDERS, Pattern
from flexckpt.lang.tree import Misplaced, Name, Statement


def is_blank(name: Name) -> bool:
    """Whether a name is ``_``."""
    return name.text == "_" and not name.quoted and name.array is None


def check_placeholders(
    names: Sequence[Name], patterns: Sequence[Pattern], driver: Pattern, all_of: bool
) -> None:
    want = set(driver.placeholders)
    for name, pattern in zip(names, patterns, strict=True):
        have = set(pattern.placeholders)
        if have - want:
            extra = ", ".join(sorted(have - want))
            raise Misplaced(
                "AOA202",
                f"{name.text} has {extra}, which no name on the other side settles; a star stands "
                f"for all of them",
                name.span,
            )
        if all_of and want - have and not is_blank(name):
            missing = ", ".join(p for p in PLACEHOLDERS if p in want - have)
            raise Misplaced(
                "AOA202",
                f"{name.text} lacks {missing}, so every index would write the same tensor",
                name.span,
            )


def check_blanks(statement: Statement) -> None:
    for side in (statement.left, statement.right):
        for name in side:
            if is_blank(name) and len(side) > 1:
                raise Misplaced("AOA203", "_ stands alone on its side", name.span)
    blank = is_blank(statement.left[0]), is_blank(statement.right[0])
    if all(blank):
        raise Misplaced("AOA203", "_ stands on one side only", statement.span)
    if any(blank):
        if statement.attributes:
            span = statement.attributes[0].span
            raise Misplaced("AOA103", "a statement with _ takes no attributes", span)
        if statement.flag:
            raise Misplaced("AOA203", f"{statement.flag} does not take _", statement.span)
        for name in (*statement.left, *statement.right):
            if name.transposed:
                raise Misplaced("AOA203", f"{name.text}^T cannot be dropped or kept", name.span)


def check_twice(statement: Statement, rows: Sequence[tuple[object, Sequence[str]]]) -> None:
    for _, names in rows:
        if len(set(names)) != len(names):
            twice = next(n for n in names if names.count(n) > 1)
            raise Misplaced("AOA305", f"{twice} is written twice in one statement", statement.span)
