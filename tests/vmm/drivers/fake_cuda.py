# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Builds fake_libcuda.cpp, and is the handle to its levers in the process that loads it."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "vmm" / "csrc"


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX", "g++"))
    if found is None:
        pytest.skip("there is no C++ compiler")
    return found


def build(folder: Path) -> None:
    """Puts a libcuda.so.1 into the folder."""
    flags = ["-std=c++20", "-shared", "-fPIC", "-fvisibility=hidden", "-I", INCLUDE]
    target = folder / "libcuda.so.1"
    files = ["-Wl,-soname,libcuda.so.1", "-o", target, HERE / "fake_libcuda.cpp", "-ldl"]
    subprocess.run([compiler(), *flags, *files], check=True)


def environment(folder: Path, **more: str) -> dict[str, str]:
    """That of a process which finds the library in the folder."""
    paths = [str(folder), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(filter(None, paths)), **more}


class Levers:
    """The levers and counters of the fake that this process has loaded."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.library.fake_seen.restype = ctypes.c_long

    def set(self, lever: str, value: int) -> None:
        self.library.fake_set(lever.encode(), ctypes.c_long(value))

    def seen(self, what: str) -> int:
        return self.library.fake_seen(what.encode())

    def fail(self, call: str, result: int, times: int = 1) -> None:
        self.library.fake_fail(call.encode(), result, ctypes.c_long(times))

    def busy(self, stream: int, on: bool) -> None:
        self.library.fake_busy(ctypes.c_void_p(stream), int(on))

    def capture(self, stream: int, on: bool) -> None:
        self.library.fake_capture(ctypes.c_void_p(stream), int(on))
