# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Ready mappings of model families: AOA files beside this one, filled in from a configuration.

A file is a program of the mapping language, from the single-device view, with additions that
:func:`load` resolves: ``{fact}`` stands for a number of the configuration; a statement with a fact
that is a list is repeated for each of its members, a name with ``{*fact}`` is; ``# when fact`` and
``# unless fact`` behind a statement say for which models it counts. A statement goes on where a
line begins with a blank.
"""

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any

from flexckpt.errors import FlexckptError
from flexckpt.recipes.facts import FAMILIES, Fact

_FACT = re.compile(r"\{(\w+)\}")
_NAMES = re.compile(r"([^\s,]*)\{\*(\w+)\}([^\s,]*)")
_GUARD = re.compile(r"\s*# (when|unless) (\w+)\s*$")


def names() -> list[str]:
    """The recipes, as ``family_layout``: ``llama_megatron``, ``llama_fused``, ..."""
    files = resources.files(__name__).iterdir()
    return sorted(f.name.removesuffix(".aoa") for f in files if f.name.endswith(".aoa"))


def describe(name: str) -> str:
    """What a recipe does: the comment at the head of its file.

    Raises:
        FlexckptError: ARG101 if there is no such recipe.
    """
    lines = []
    for line in _text(name).splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("# "))
    return "\n".join(lines)


def load(name: str, config: Any) -> str:
    """The program of a recipe for one model.

    It maps the names in Hugging Face's files to those of the layout. With ``reverse=True`` the
    functions of flexckpt derive the way back.

    Args:
        name: one of :func:`names`.
        config: a configuration of transformers, or the dict of its ``config.json``.

    Raises:
        FlexckptError: ARG101 if there is no such recipe, or if the configuration lacks something
            or is of a kind that the recipe does not serve.
    """
    text = _text(name)
    fields = config if isinstance(config, Mapping) else config.to_dict()
    family = max((f for f in FAMILIES if name.startswith(f"{f}_")), key=len)
    facts: dict[str, Fact] = {}
    for fact, read in FAMILIES[family].items():
        try:
            facts[fact] = read(fields)
        except FlexckptError as error:
            raise FlexckptError(error.code, f"recipe {name!r}: {error.message}") from None
    out = []
    for statement in _statements(text):
        guard = _GUARD.search(statement)
        if guard:
            statement = statement[: guard.start()]
            if bool(facts[guard[2]]) != (guard[1] == "when"):
                continue
        out += _filled(statement, facts)
    return "\n".join(out) + "\n"


def _text(name: str) -> str:
    if name not in names():
        raise FlexckptError("ARG101", f"there is no recipe {name!r}, only {', '.join(names())}")
    return resources.files(__name__).joinpath(f"{name}.aoa").read_text("utf-8")


def _statements(text: str) -> Iterator[str]:
    """The statements and comments of a file, each with the lines on which it goes on."""
    current = ""
    for line in text.splitlines():
        if line[:1].isspace():
            current += "\n" + line
        else:
            if current:
                yield current
            current = line
    if current:
        yield current


def _filled(statement: str, facts: Mapping[str, Fact]) -> list[str]:
    """The statement with its facts filled in: once, or once per member of a list."""
    if statement.startswith("#"):
        return [statement]
    copies = [_NAMES.sub(lambda match: _named(match, facts), statement)]
    for fact in dict.fromkeys(_FACT.findall(statement)):
        value = facts[fact]
        values = value if isinstance(value, list) else [value]
        copies = [copy.replace(f"{{{fact}}}", str(v)) for copy in copies for v in values]
    return copies


def _named(match: re.Match[str], facts: Mapping[str, Fact]) -> str:
    """The names that a name with ``{*fact}`` stands for."""
    members = facts[match[2]]
    names = [f"{match[1]}{m}{match[3]}" for m in (members if isinstance(members, list) else ())]
    return ",\n    ".join(names)
