# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names with placeholders and stars against a set of names, by one pass over the names.

Names are filed under what is left of them without their runs of digits, so that a pattern looks at
the names of its own kind only.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

STAR = "*"
LAYER_OFFSET = "$LAYER_ID_OFFSET"
# In the order in which ids vary, the slowest first.
PLACEHOLDERS = ("$EXPERT_ID", "$LAYER_ID", LAYER_OFFSET)

Ids = tuple[str, ...]

_WILD = re.compile(r"(\$LAYER_ID_OFFSET|\$LAYER_ID|\$EXPERT_ID|\*)")
_DIGITS = re.compile(r"([0-9]+)")
_GAP = "\0"


class Pattern(NamedTuple):
    """A name that was taken apart.

    Attributes:
        parts: text and wildcards in turn, beginning and ending with text.
        placeholders: the distinct ones, in the order of :data:`PLACEHOLDERS`.
        stars: how many stars there are.
    """

    parts: tuple[str, ...]
    placeholders: tuple[str, ...]
    stars: int


def pattern_of(text: str) -> Pattern:
    if "$" not in text and STAR not in text:
        return Pattern((text,), (), 0)
    parts = tuple(_WILD.split(text))
    wild = parts[1::2]
    return Pattern(parts, tuple(p for p in PLACEHOLDERS if p in wild), wild.count(STAR))


def template(pattern: Pattern, placeholders: tuple[str, ...]) -> str:
    """A pattern without a star as a format string; its fields are positions in ``placeholders``."""
    texts = [p.replace("{", "{{").replace("}", "}}") for p in pattern.parts]
    for i in range(1, len(texts), 2):
        texts[i] = f"{{{placeholders.index(pattern.parts[i])}}}"
    return "".join(texts)


def numeric(ids: Ids) -> tuple[int, ...]:
    """The order of ids: by number, not by text."""
    return tuple(map(int, ids))


class Index:
    """Names that patterns are matched against; more may be added at any time."""

    def __init__(self, names: Iterable[str]) -> None:
        self._waiting: list[Iterable[str]] = [names]
        self._filed: dict[str, list[tuple[str, list[str]]]] = {}
        self._found: dict[Pattern, dict[Ids, list[str]]] = {}

    def add(self, names: Iterable[str]) -> None:
        self._waiting.append(names)
        self._found.clear()

    def _file(self) -> dict[str, list[tuple[str, list[str]]]]:
        filed, split = self._filed, _DIGITS.split
        for names in self._waiting:
            for name in dict.fromkeys(names):
                parts = split(name)
                kind = _GAP.join(parts[::2])
                if kind in filed:
                    filed[kind].append((name, parts[1::2]))
                else:
                    filed[kind] = [(name, parts[1::2])]
        self._waiting.clear()
        return filed

    def match(self, pattern: Pattern) -> dict[Ids, list[str]]:
        """Ids of the placeholders -> names, ordered by the star; ids in numeric order."""
        found = self._found.get(pattern)
        if found is None:
            found = self._found[pattern] = self._search(pattern)
        return found

    def _search(self, pattern: Pattern) -> dict[Ids, list[str]]:
        hits = self._hits(pattern)
        wild = pattern.parts[1::2]
        where = [wild.index(p) for p in pattern.placeholders]
        again = [(i, wild.index(w)) for i, w in enumerate(wild) if wild.index(w) != i and w != STAR]
        if again:
            hits = [hit for hit in hits if all(hit[1][i] == hit[1][j] for i, j in again)]
        if STAR in wild:
            star = wild.index(STAR)
            hits = sorted(hits, key=lambda hit: int(hit[1][star]))
        groups: dict[Ids, list[str]] = {}
        for name, values in hits:
            ids = tuple([values[i] for i in where])
            if ids in groups:
                groups[ids].append(name)
            else:
                groups[ids] = [name]
        return {ids: groups[ids] for ids in sorted(groups, key=numeric)}

    def _hits(self, pattern: Pattern) -> list[tuple[str, list[str]]]:
        """The names that fit, with what stands for each wildcard."""
        parts = pattern.parts
        filed = self._file()
        touching = any(
            (i and text[:1].isdigit())
            or (i < len(parts) - 1 and text[-1:].isdigit())
            or (not text and 0 < i < len(parts) - 1)
            for i, text in list(enumerate(parts))[::2]
        )
        if (
            touching
        ):  # a wildcard beside a digit or another wildcard: where one ends is not plain to see
            texts = [re.escape(text) for text in parts]
            texts[1::2] = ["([0-9]+)"] * (len(parts) // 2)
            regex = re.compile("".join(texts))
            names = (name for members in filed.values() for name, _ in members)
            found = ((name, regex.fullmatch(name)) for name in names)
            return [(name, list(match.groups())) for name, match in found if match]
        kinds: list[str] = []
        fixed: list[tuple[int, str]] = []
        wild: list[int] = []
        count = 0
        for i, text in enumerate(parts):
            if i % 2:
                wild.append(count)
                count += 1
                continue
            pieces = _DIGITS.split(text)
            if i and kinds:
                kinds.append(pieces[0])
            else:
                kinds = [pieces[0]]
            for digits, rest in zip(pieces[1::2], pieces[2::2], strict=True):
                fixed.append((count, digits))
                count += 1
                kinds.append(rest)
        hits = filed.get(_GAP.join(kinds), [])
        if fixed:
            hits = [hit for hit in hits if all(hit[1][i] == digits for i, digits in fixed)]
        if wild != list(range(count)):
            return [(name, [values[i] for i in wild]) for name, values in hits]
        return hits
