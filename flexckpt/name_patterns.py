# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Many names as few patterns, for people: ``model.layers.{0..31}.mlp.up_proj.weight``."""

import re
from collections.abc import Iterable

# A number that stands alone: that of a layer or an expert, not that of "w1" or "conv2d".
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_SHOWN = 4  # numbers of a gap-ridden set that are written out


def template(name: str) -> str:
    """The name with a hole for every number that stands alone."""
    return _NUMBER.sub("{}", name)


def patterns(names: Iterable[str]) -> list[tuple[str, int]]:
    """Patterns that stand for the names, and how many names each stands for.

    They come in the order in which they first appear. A pattern of several sets of numbers stands for
    at most all of their combinations.
    """
    groups: dict[str, list[list[str]]] = {}
    for name in names:
        groups.setdefault(template(name), []).append(_NUMBER.findall(name))
    return [(_fill(text, numbers), len(numbers)) for text, numbers in groups.items()]


def pattern_of(names: Iterable[str]) -> str:
    """The patterns of the names in one line."""
    return ", ".join(text for text, _ in patterns(names))


def _fill(text: str, numbers: list[list[str]]) -> str:
    parts = text.split("{}")
    holes = [_numbers(set(column)) for column in zip(*numbers, strict=True)]
    return "".join(a + b for a, b in zip(parts, [*holes, ""], strict=True))


def _numbers(texts: set[str]) -> str:
    """``7``, ``{0..31}``, ``{0, 2, 5}`` or ``{0..95, 48 of them}``."""
    if len(texts) == 1:
        return texts.pop()
    values = sorted(map(int, texts))
    first, last = values[0], values[-1]
    if last - first == len(values) - 1 and len(values) > 2:
        return f"{{{first}..{last}}}"
    if len(values) <= _SHOWN:
        return f"{{{', '.join(map(str, values))}}}"
    return f"{{{first}..{last}, {len(values)} of them}}"
