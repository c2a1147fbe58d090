# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Global numbers in names: layer ``i`` of a pipeline stage is layer ``first + i`` of the model."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import Value
from flexckpt.model import Shard


class Template(NamedTuple):
    """Where a number stands in names, and what is added to it."""

    text: str
    regex: re.Pattern[str]
    first: int


def renumber(state: Mapping[str, Value], first: Mapping[str, int]) -> dict[str, Value]:
    """The same state under names with global numbers.

    Args:
        state: tensors or shards by name; shards get the new name as well.
        first: what to add to a number. ``layers`` is the number behind the component ``layers`` of
            a dotted name (``decoder.layers.3.bias``). For numbers elsewhere, a part of the name
            with ``#`` for the number (``linear_fc1.weight#``), which starts and ends where
            components do.

    Raises:
        LayoutError: LAY107 if a template fits no name, if it or two of them fit a name in several
            ways, or if a number would be negative.
    """
    templates = [_template(text, number) for text, number in first.items()]
    out: dict[str, Value] = {}
    unused = set(first)
    for name, value in state.items():
        new, used = _renamed(name, templates)
        unused -= used
        out[new] = _with_new_key(value, templates)
    if unused:
        raise LayoutError(
            "LAY107",
            f"no name has a number for {min(unused)!r}; leave out what this rank does not have",
        )
    return out


def _template(text: str, first: int) -> Template:
    full = text if "#" in text else f"{text}.#"
    if full.count("#") > 1:
        raise LayoutError("LAY107", f"the template {text!r} must have one '#' at most")
    before, after = map(re.escape, full.split("#"))
    number = r"(0|[1-9][0-9]*)"
    return Template(text, re.compile(rf"(?<![^.]){before}{number}(?={after}(?![^.@]))"), first)


def _renamed(name: str, templates: list[Template]) -> tuple[str, set[str]]:
    """The new name, and the templates that fit the old one."""
    numbers: dict[tuple[int, int], str] = {}
    used: set[str] = set()
    for text, regex, first in templates:
        for match in regex.finditer(name):
            number = int(match[1]) + first
            if number < 0:
                raise LayoutError("LAY107", f"{name!r}: {text!r} plus {first} is {number}")
            if text in used or match.span(1) in numbers:
                raise LayoutError("LAY107", f"{text!r} is ambiguous in {name!r}")
            numbers[match.span(1)] = str(number)
            used.add(text)
    for (start, stop), new in sorted(numbers.items(), reverse=True):
        name = f"{name[:start]}{new}{name[stop:]}"
    return name, used


def _with_new_key(value: Value, templates: list[Template]) -> Value:
    if isinstance(value, Shard):
        return replace(value, key=_renamed(value.key, templates)[0])
    if isinstance(value, list | tuple):
        return [replace(shard, key=_renamed(shard.key, templates)[0]) for shard in value]
    return value
