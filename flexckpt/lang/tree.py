# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The syntax tree of AOA: statements of names and attributes, each with its place in the text."""

from collections.abc import Sequence
from typing import NamedTuple

from flexckpt.errors import AoaError

Value = int | str | tuple[int, ...]


class Misplaced(Exception):  # noqa: N818 (it becomes an AoaError)
    """Something wrong at a place of an entry; who knows the text makes an AoaError of it."""

    def __init__(self, code: str, message: str, span: "Span") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.span = span


class Span(NamedTuple):
    """Characters ``[start, stop)`` of one entry of the text."""

    start: int
    stop: int


class Name(NamedTuple):
    """A name of a statement, before macros.

    Attributes:
        text: may hold placeholders and a star.
        transposed: it carries ``^T``.
        array: the range of ``NAME[a:b]``.
        suffix: what follows the brackets.
        quoted: it was written in quotes, so it is never a flag word and never ``_``.
    """

    text: str
    span: Span
    transposed: bool = False
    array: tuple[int, int] | None = None
    suffix: str = ""
    quoted: bool = False


class Attribute(NamedTuple):
    key: str
    value: Value
    span: Span
    raw: str  # the value as it was written


class Statement(NamedTuple):
    """One arrow.

    Attributes:
        number: position in the program, from 0.
        entry: which entry of the text it is from.
        flag: ``fused_qkv`` and the like, or None.
        offset: what ``$LAYER_ID_OFFSET`` adds to an index on the right.
    """

    number: int
    entry: int
    span: Span
    left: tuple[Name, ...]
    right: tuple[Name, ...]
    flag: str | None
    attributes: tuple[Attribute, ...]
    offset: int = -1

    def get(self, key: str) -> Value | None:
        """The value of an attribute, or None."""
        for attribute in self.attributes:
            if attribute.key == key:
                return attribute.value
        return None


class Text:
    """The text of a program: a string, or a list of strings over which no statement runs on."""

    def __init__(self, aoa: str | Sequence[str]) -> None:
        if not isinstance(aoa, str | list | tuple):
            what = f"a program is text or a list of statements, not {type(aoa).__name__}"
            raise AoaError("AOA102", what)
        self.entries: tuple[str, ...] = (aoa,) if isinstance(aoa, str) else tuple(aoa)
        for entry in self.entries:
            if not isinstance(entry, str):
                raise AoaError("AOA102", f"a program is text, not {type(entry).__name__}")

    def excerpt(self, statement: Statement) -> str:
        """What the user wrote for a statement."""
        return self.entries[statement.entry][statement.span.start : statement.span.stop].strip()

    def error(
        self,
        code: str,
        message: str,
        entry: int,
        span: Span,
        *,
        statement: int | None = None,
        expanded: str | None = None,
    ) -> AoaError:
        """The error at a place of the text: lines count over all entries, from 1."""
        text = self.entries[entry]
        line = (
            sum(e.count("\n") + 1 for e in self.entries[:entry])
            + text.count("\n", 0, span.start)
            + 1
        )
        begin = text.rfind("\n", 0, span.start) + 1
        end = text.find("\n", span.start)
        end = len(text) if end < 0 else end
        column = span.start - begin
        width = max(1, min(span.stop, end) - span.start)
        first, shown = _window(text[begin:end], column)
        width = max(1, min(width, len(shown) - (column - first)))
        excerpt = f"{shown}\n{' ' * (column - first)}{'^' * width}"
        return AoaError(
            code,
            message,
            statement=statement,
            line=line,
            column=column + 1,
            excerpt=excerpt,
            expanded=expanded,
        )


def _window(line: str, column: int, width: int = 160) -> tuple[int, str]:
    """The part of a long line around a column, with tabs as blanks."""
    line = line.replace("\t", " ").replace("\r", " ")
    first = 0 if len(line) <= width else max(0, min(column - width // 2, len(line) - width))
    return first, line[first : first + width]
