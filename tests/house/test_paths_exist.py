# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every path that the guides name exists.

Links count from the folder of their guide. A word in a code span or code block is taken for a path
when it ends in a slash or in a file extension used here. A file or folder must have that path, or
lie in a package and end in it, for DESIGN.md names files from the folder it speaks of. Patterns (a
star, a brace, an angle bracket) are left alone.
"""

import re

import pytest

from tests.house.project import PACKAGES, ROOT

GUIDES = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
)

EXTENSIONS = "cpp|h|json|md|py|toml|txt|typed|yaml|yml"
PATH = re.compile(
    rf"(?<![\w./*<>{{}}-])(?:[\w.-]+/)*(?:[\w.-]+/|[\w.-]*\.(?:{EXTENSIONS}))(?![\w/*<{{-])"
)

# Made by the targets of the Makefile, or by the reader.
MADE_LATER = {".venv/", "build/", "demo_out/", "dist/"}


def code(text: str) -> str:
    blocks = re.findall(r"^```.*?^```", text, re.S | re.M)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    indented = re.findall(r"^    .*$", prose, re.M)
    prose = re.sub(r"^    .*$", "", prose, flags=re.M)
    return "\n".join(blocks + indented + re.findall(r"`([^`\n]+)`", prose))


def links(text: str) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    return [target.partition("#")[0] for target in targets if "://" not in target]


def known_paths() -> set[str]:
    tops = [path for path in ROOT.iterdir() if not path.name.startswith(".") or path.name == ".ci"]
    deep = [path for top in tops if top.is_dir() and top.name != "build" for path in top.rglob("*")]
    files = [path for path in ROOT.iterdir() if path.is_file()]
    return {path.relative_to(ROOT).as_posix() for path in tops + deep + files}


def exists(path: str, known: set[str]) -> bool:
    path = path.rstrip("/")
    inside = [one for one in known if one.partition("/")[0] in PACKAGES]
    return path in known or any(one.endswith(f"/{path}") for one in inside)


@pytest.mark.parametrize("guide", GUIDES)
def test_named_paths_exist(guide):
    text = (ROOT / guide).read_text()
    named = {*PATH.findall(code(text)), *filter(None, links(text))} - MADE_LATER
    known, beside = known_paths(), (ROOT / guide).parent
    missing = [path for path in named if not exists(path, known) and not (beside / path).exists()]
    assert sorted(missing) == []


def test_rule_finds_what_it_should():
    text = (
        "See `api.py`, `mask/`, `a*.py`, `x/y` or `{a,b}.py`.\n\n```\nmake -C docs/none.md\n```\n"
    )
    text += "tree:\n\n    top/\n      low.cpp  tokens/s and 3/4\n"
    assert sorted(PATH.findall(code(text))) == [
        "api.py",
        "docs/none.md",
        "low.cpp",
        "mask/",
        "top/",
    ]
