# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Joining the modules of the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vmm.view
from vmm.view.bundle import bundle

PAGE = Path(vmm.view.__file__).parent / "page"


def test_what_is_imported_comes_first_and_once() -> None:
    sources = {
        "a.js": '// h\nimport { b } from "./b.js";\nimport { c } from "./c.js";\n\nb(c);\n',
        "b.js": '// h\nimport { c } from "./c.js";\nexport function b() {}\n',
        "c.js": "export const c = 1;\nexport class D {}\nexport async function e() {}\n",
    }
    joined = bundle(sources, "a.js")
    assert re.findall(r"^// ---- (\S+)", joined, re.MULTILINE) == ["c.js", "b.js", "a.js"]
    assert "import" not in joined
    assert "export" not in joined


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({"a.js": 'import { b } from "./b.js";\n'}, "no module b.js"),
        (
            {
                "a.js": 'import { b } from "./b.js";\n',
                "b.js": 'import { a } from "./a.js";\n',
            },
            "a.js -> b.js -> a.js",
        ),
        (
            {"a.js": 'import { x } from "./b.js";\nconst x = 1;\n', "b.js": "export let x = 2;\n"},
            "cannot be joined",
        ),
        (
            {"a.js": 'import { y } from "./b.js";\nconst x = 1;\n', "b.js": "const x = 2;\n"},
            "both b.js and a.js define x",
        ),
        ({"a.js": "export default 3;\n"}, "cannot be joined"),
    ],
)
def test_what_cannot_be_joined(sources: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bundle(sources, "a.js")


def test_every_module_is_used_and_every_import_exists() -> None:
    sources = {path.name: path.read_text() for path in PAGE.glob("*.js")}
    joined = bundle(sources, "main.js")
    assert set(re.findall(r"^// ---- (\S+)", joined, re.MULTILINE)) == set(sources)
    for name, text in sources.items():
        for words, source in re.findall(r'^import \{([^}]*)\} from "\./([\w.]+)"', text, re.M):
            for word in filter(None, map(str.strip, words.split(","))):
                exported = rf"^export (?:async )?(?:function|class|const) {word}\b"
                assert re.search(exported, sources[source], re.M), f"{name}: {word} of {source}"
                assert len(re.findall(rf"\b{word}\b", text)) > 1, f"{name} does not use {word}"
