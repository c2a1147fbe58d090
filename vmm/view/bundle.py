# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Joins the ES modules of the page into one script.

The modules know one form each: ``import { a, b } from "./x.js";`` and ``export`` before a function,
a class or a const. Their top-level names differ, so that they may share one scope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const)\b)", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^(?:async )?(?:function|class|const|let)\s+(\w+)", re.MULTILINE)
_HEADER = re.compile(r"\A(?://.*\n)+")


def bundle(sources: Mapping[str, str], entry: str) -> str:
    """One script of the module ``entry`` and all that it imports, what is imported first.

    Raises ValueError for a module that is missing, for a circle, for a name that two modules use,
    and for a form of import or export that is not known.
    """
    order: list[str] = []
    _visit(entry, sources, (), order)
    parts: list[str] = []
    owner: dict[str, str] = {}
    for name in order:
        text = _EXPORT.sub("", _IMPORT.sub("", _HEADER.sub("", sources[name])))
        if re.search(r"^(?:import|export)\b", text, re.MULTILINE):
            raise ValueError(f"{name} has an import or an export that cannot be joined")
        for word in _TOP_LEVEL.findall(text):
            if owner.setdefault(word, name) != name:
                raise ValueError(f"both {owner[word]} and {name} define {word}")
        parts.append(f"// ---- {name}\n{text.strip()}\n")
    return "\n".join(parts)


def _visit(name: str, sources: Mapping[str, str], above: tuple[str, ...], order: list[str]) -> None:
    if name in order:
        return
    if name in above:
        raise ValueError(f"modules import one another: {' -> '.join((*above, name))}")
    if name not in sources:
        raise ValueError(f"there is no module {name}")
    for needed in _IMPORT.findall(sources[name]):
        _visit(needed, sources, (*above, name), order)
    order.append(name)
