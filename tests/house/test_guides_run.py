# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The Python code blocks of the guides run, in their order, as one program per guide."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.project import ROOT


def program(guide: Path) -> str:
    """The code of a guide, each line at its place, so that a traceback points into the guide."""
    lines = []
    in_block = False
    for line in guide.read_text().splitlines():
        if line.startswith("```"):
            in_block = line == "```python"
            line = ""
        lines.append(line if in_block else "")
    return "\n".join(lines).rstrip()


NAMED = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))
GUIDES = [path for path in NAMED if program(path)]


@pytest.mark.parametrize("guide", GUIDES, ids=[path.name for path in GUIDES])
def test_code_blocks_run(guide, tmp_path):
    script = tmp_path / f"{guide.stem}_guide.py"  # not the name of a package that it imports
    script.write_text(program(guide))
    command = [sys.executable, script.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_readme_has_an_example():
    assert ROOT / "README.md" in GUIDES
