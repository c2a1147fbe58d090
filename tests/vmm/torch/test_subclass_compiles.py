# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The class for CUDA compiles against this torch, also on a machine without a GPU."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from torch.utils.cpp_extension import include_paths

from tests.house.project import ROOT
from tests.vmm.torch.compiling import HEADERS, needs


def cuda_headers() -> Path | None:
    """The folder of cuda_runtime_api.h."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    compiler = shutil.which("nvcc")
    if compiler:
        roots.append(Path(compiler).resolve().parents[1])
    roots += sorted(Path("/usr/local").glob("cuda*"))
    found = [root / "include" for root in roots]
    return next((path for path in found if (path / "cuda_runtime_api.h").exists()), None)


@needs("g++")
@pytest.mark.skipif(cuda_headers() is None, reason="the headers of CUDA are missing")
@pytest.mark.parametrize("source", ["cuda_subclass.cpp", "cuda_snapshot.cpp"])
def test_it_compiles(source):
    torch_headers = [Path(path) for path in include_paths()]
    generated = "c10/cuda/impl/cuda_cmake_macros.h"
    own = any((path / generated).exists() for path in torch_headers)
    shim = [] if own else [HEADERS / "torch" / "shim"]
    done = subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
        + [f"-I{path}" for path in (HEADERS, *shim)]
        + [f"-isystem{path}" for path in (*torch_headers, cuda_headers())]
        + [str(ROOT / "vmm" / "csrc" / "torch" / source)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
