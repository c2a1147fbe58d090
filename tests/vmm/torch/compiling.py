# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Compiles small programs against the headers of the core."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.house.project import ROOT

HERE = Path(__file__).parent
HEADERS = ROOT / "vmm" / "csrc"
CORE = sorted((ROOT / "vmm").glob("_core*.so"))

needs_core = pytest.mark.skipif(not CORE, reason="built with BUILD_NATIVE=0")


def needs(compiler: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(compiler) is None, reason=f"{compiler} is missing")


def build(source: str, to: Path, *flags: str) -> Path:
    compiler = "gcc" if source.endswith(".c") else "g++"
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    command = [compiler, *flags, *warnings, f"-I{HEADERS}", str(HERE / source)]
    subprocess.run([*command, "-o", str(to), "-ldl", "-pthread"], check=True)
    return to


def run(program: Path, *words: str) -> str:
    done = subprocess.run([str(program), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
