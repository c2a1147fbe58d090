# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Arrays, placeholders and stars: from the statements of the tree to rows of plain names."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from flexckpt.lang.attributes import MAX_COUNT
from flexckpt.lang.checks import check_blanks, check_placeholders, check_twice, is_blank
from flexckpt.lang.names import (
    LAYER_OFFSET,
    Ids,
    Index,
    Pattern,
    pattern_of,
    template,
)
from flexckpt.lang.tree import Misplaced, Name, Statement

Row = tuple[tuple[str, ...], tuple[str, ...]]


class Group(NamedTuple):
    """The rows of plain names that a statement stands for; all rows have as many names.

    Attributes:
        left, right: which names carry ``^T``.
        rows: names on the left and on the right.
    """

    statement: Statement
    left: tuple[bool, ...]
    right: tuple[bool, ...]
    rows: list[Row]

    @property
    def drops(self) -> bool:
        return is_blank(self.statement.right[0])

    @property
    def keeps(self) -> bool:
        return is_blank(self.statement.left[0])


class Expander:
    """Expands statements in order.

    Args:
        source: names of the source.
        dest: names of the destination, or None.
        unmatched: called with a Misplaced where a pattern matches nothing; may raise.
        lenient: what statements with ``_`` name need not be there, as it is on the way back.
    """

    def __init__(
        self,
        source: Index,
        dest: Index | None,
        unmatched: Callable[[Statement, Misplaced], None],
        lenient: bool = False,
    ) -> None:
        self.source = source
        self.dest = dest
        self.written = Index(())
        self._unmatched = unmatched
        self._lenient = lenient

    def expand(self, statement: Statement) -> list[Group]:
        """The rows of one statement.

        Raises:
            Misplaced: AOA201 to AOA203.
        """
        left, right = _arrays(statement.left), _arrays(statement.right)
        check_blanks(statement)
        if not any(map(_is_pattern, left)) and not any(map(_is_pattern, right)):
            names = tuple([n.text for n in left]), tuple([n.text for n in right])
            groups = [_group(statement, left, right, [names])]
        else:
            groups = self._patterns(statement, left, right)
        for group in groups:
            if len(right) > 1 or len(group.right) > 1:
                check_twice(statement, group.rows)
            if not group.drops:
                self.written.add([name for _, names in group.rows for name in names])
        return groups

    def _patterns(self, statement: Statement, left: list[Name], right: list[Name]) -> list[Group]:
        if self._lenient and self.dest is None and is_blank(statement.left[0]):
            return []  # what was dropped by a pattern: there is no destination to keep
        patterns = [pattern_of(n.text) for n in left], [pattern_of(n.text) for n in right]
        for names, side in zip((left, right), patterns, strict=True):
            for name, pattern in zip(names, side, strict=True):
                if pattern.stars > 1:
                    message = f"a name has one star, not {pattern.stars}"
                    raise Misplaced("AOA203", message, name.span)
        try:
            ids, placeholders = self._ids(statement, left, right, *patterns)
            lefts = [
                self._column(statement, name, p, placeholders, ids, 0)
                for name, p in zip(left, patterns[0], strict=True)
            ]
            rights = [
                self._column(statement, name, p, placeholders, ids, statement.offset)
                for name, p in zip(right, patterns[1], strict=True)
            ]
        except _Nothing as nothing:
            blank = is_blank(statement.left[0]) or is_blank(statement.right[0])
            if not (self._lenient and blank):
                self._unmatched(statement, nothing.problem)
            return []
        if not any(p.stars for side in patterns for p in side):
            rows = list(
                zip(
                    zip(*[column for column, _ in lefts], strict=True),
                    zip(*[column for column, _ in rights], strict=True),
                    strict=True,
                )
            )
            return [_group(statement, left, right, rows)]
        return [
            _starred(
                statement, (left, right), ([c[1][i] for c in lefts], [c[1][i] for c in rights])
            )
            for i in range(len(ids))
        ]

    def _ids(
        self,
        statement: Statement,
        left: list[Name],
        right: list[Name],
        lefts: list[Pattern],
        rights: list[Pattern],
    ) -> tuple[list[Ids], tuple[str, ...]]:
        """The ids that the statement is written for, and of which placeholders."""
        wanted = max((len(p.placeholders) for p in lefts), default=0)
        where, names, patterns = "the source", left, lefts
        if wanted == 0:
            wanted = max((len(p.placeholders) for p in rights), default=0)
            if wanted == 0:
                return [()], ()
            where, names, patterns = "the destination", right, rights
        k = next(i for i, p in enumerate(patterns) if len(p.placeholders) == wanted)
        driver, pattern = names[k], patterns[k]
        check_placeholders(left, lefts, pattern, all_of=False)
        check_placeholders(right, rights, pattern, all_of=True)
        found = self._match(pattern, names is left, driver)
        if not found:
            message = f"{driver.text} matches no tensor of {where}"
            raise _Nothing(Misplaced("AOA201", message, driver.span))
        return list(found), pattern.placeholders

    def _match(self, pattern: Pattern, left: bool, name: Name) -> dict[Ids, list[str]]:
        """Names of the source, else those written before; on the right, destinations."""
        if left:
            return self.source.match(pattern) or self.written.match(pattern)
        if self.dest is None:
            message = f"{name.text} on the right needs a description of the destination"
            raise Misplaced("AOA203", message, name.span)
        return self.dest.match(pattern)

    def _column(
        self,
        statement: Statement,
        name: Name,
        pattern: Pattern,
        placeholders: tuple[str, ...],
        ids: list[Ids],
        offset: int,
    ) -> tuple[list[str], list[list[str]]]:
        """A name for all ids: as text, or where it has a star as lists of names."""
        if offset and LAYER_OFFSET in pattern.placeholders:
            ids = _shifted(ids, placeholders.index(LAYER_OFFSET), offset, name)
        if not pattern.stars:
            if not pattern.placeholders:
                column = [name.text] * len(ids)
            else:
                fill = template(pattern, placeholders).format
                column = [fill(*i) for i in ids]
            return column, [[text] for text in column]
        found = self._match(pattern, name in statement.left, name)
        where = [placeholders.index(p) for p in pattern.placeholders]
        lists = []
        for i in ids:
            names = found.get(tuple([i[k] for k in where]))
            if names is None:
                at = template(pattern._replace(parts=_starless(pattern)), placeholders).format(*i)
                at = at.replace("\0", "*")
                where_not = "source" if name in statement.left else "destination"
                message = f"{at} matches no tensor of the {where_not}"
                raise _Nothing(Misplaced("AOA201", message, name.span))
            lists.append(names)
        return [], lists


class _Nothing(Exception):  # noqa: N818 (control flow)
    def __init__(self, problem: Misplaced) -> None:
        self.problem = problem


def _starless(pattern: Pattern) -> tuple[str, ...]:
    """Parts in which the star is text."""
    k = pattern.parts.index("*")
    parts = pattern.parts
    return (*parts[: k - 1], f"{parts[k - 1]}\0{parts[k + 1]}", *parts[k + 2 :])


def _is_pattern(name: Name) -> bool:
    return "$" in name.text or "*" in name.text


def _arrays(names: Sequence[Name]) -> list[Name]:
    """``q[0:2]`` as ``q_0``, ``q_1``."""
    out = []
    for name in names:
        if name.array is None:
            out.append(name)
            continue
        for i in range(*name.array):
            out.append(name._replace(text=f"{name.text}_{i}{name.suffix}", array=None, suffix=""))
        if len(out) > MAX_COUNT:
            message = f"a statement has at most {MAX_COUNT} names on a side"
            raise Misplaced("AOA104", message, name.span)
    return out


def _group(
    statement: Statement, left: Sequence[Name], right: Sequence[Name], rows: list[Row]
) -> Group:
    return Group(
        statement,
        tuple([n.transposed for n in left]),
        tuple([n.transposed for n in right]),
        rows,
    )


def _starred(
    statement: Statement,
    names: tuple[list[Name], list[Name]],
    columns: tuple[list[list[str]], list[list[str]]],
) -> Group:
    """A row whose stars stand for lists of names."""
    sides, flags = [], []
    for side, lists in zip(names, columns, strict=True):
        sides.append(tuple([text for texts in lists for text in texts]))
        flags.append(
            tuple([n.transposed for n, texts in zip(side, lists, strict=True) for _ in texts])
        )
    return Group(statement, flags[0], flags[1], [(sides[0], sides[1])])


def _shifted(ids: list[Ids], k: int, offset: int, name: Name) -> list[Ids]:
    """Ids with one of them moved by ``offset``."""
    out = []
    for i in ids:
        new = int(i[k]) + offset
        if new < 0:
            message = f"{name.text}: the offset turns layer {i[k]} into {new}; count layers from 1"
            raise Misplaced("AOA203", message, name.span)
        out.append((*i[:k], str(new), *i[k + 1 :]))
    return out
