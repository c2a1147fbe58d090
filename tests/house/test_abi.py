# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The compiled module asks only for what the stable ABI promises, on the target it promises."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

from tests.house.project import NATIVE_MODULE, ROOT

STABLE_ABI_H = ROOT / "flashmask" / "csrc" / "stable_abi.h"


def undefined_symbols() -> list[str]:
    command = ["nm", "-D", "--undefined-only", str(NATIVE_MODULE)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[-1].partition("@")[0] for line in lines]


@pytest.mark.skipif(not NATIVE_MODULE.exists(), reason="built with BUILD_NATIVE=0")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_module_needs_no_mangled_torch_symbol():
    symbols = undefined_symbols()
    assert any(name.startswith("aoti_torch_") for name in symbols)  # the list is not an empty one
    namespaces = ("2at", "3c10", "5torch", "6caffe2")
    mangled = [name for name in symbols if name.startswith("_Z")]
    assert [name for name in mangled if any(space in name for space in namespaces)] == []


@pytest.mark.skipif(not NATIVE_MODULE.exists(), reason="built with BUILD_NATIVE=0")
@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_module_exports_its_init_function_and_nothing_of_ours():
    command = ["nm", "-D", "--defined-only", "--extern-only", "-C", str(NATIVE_MODULE)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.split(maxsplit=2)[-1] for line in lines]
    assert "PyInit__C" in names
    assert [name for name in names if "flashmask" in name or "torch" in name] == []


def compile_header(target: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", f"-DTORCH_TARGET_VERSION={target}", "-x", "c++"]
        + [f"-I{path}" for path in (*include_paths(), sysconfig.get_path("include"))]
        + [str(STABLE_ABI_H)],
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_target_newer_than_torch_is_refused_by_the_compiler():
    done = compile_header("0x0aff000000000000")
    assert done.returncode != 0
    assert "TORCH_TARGET_VERSION is newer than the installed torch" in done.stderr


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_target_of_the_floor_compiles():
    done = compile_header("0x020a000000000000")
    assert done.returncode == 0, done.stderr


def levels() -> list[Path]:
    """Objects compiled for more than the baseline of the machine, where they lie here."""
    return sorted((ROOT / "build" / "objects" / "flashmask" / "csrc").glob("kernel_avx*.o"))


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
@pytest.mark.parametrize("path", levels(), ids=[path.stem for path in levels()])
def test_instruction_set_levels_share_no_code_with_the_rest(path):
    # The linker keeps one copy of an inline function. If it kept the copy of a level, the portable
    # code would run instructions that the processor may not have.
    command = ["nm", "--defined-only", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    kinds = {line.split()[-1]: line.split()[-2] for line in lines}
    assert kinds  # the list is not an empty one
    shared = [name for name, kind in kinds.items() if kind in "uWVwv"]
    assert [name for name in shared if path.stem.removeprefix("kernel_") not in name] == []
