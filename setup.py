# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A table of native extensions and the command that builds them. Metadata is in pyproject.toml."""

import os
import platform
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
OBJECTS = "build/objects"  # not build_temp, which an editable install throws away

# The floors of the stable ABI: a compiled module runs on every later torch and Python.
TORCH_FLOOR = (2, 10)
PYTHON_FLOOR = (3, 10)

BUILD_NATIVE = os.environ.get("BUILD_NATIVE", "1") != "0"
DEBUG = os.environ.get("DEBUG", "0") != "0"
PORTABLE = os.environ.get("PORTABLE", "0") != "0"
MAX_JOBS = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)

X86 = platform.machine().lower() in ("x86_64", "amd64")
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
AVX512_BF16 = [*AVX512, "-mavx512bf16"]
# Packed words are floats or pairs of bf16 and are read as either.
# g++ 12 takes the undefined operands inside its own AVX-512 header, and sums of strings inside its
# own library, for mistakes of ours.
QUIET = ["-Wno-uninitialized", "-Wno-restrict", "-Wno-maybe-uninitialized", "-Wno-unused-parameter"]
DIALECT = ["-std=c++20", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra", *QUIET]
LEVEL = ["-O0", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]

# Module -> source -> flags. An instruction-set level is a source of its own, so that its flags
# never reach code which must run on every processor.
X86_ONLY = {
    "flashmask/csrc/kernel_avx2.cpp": AVX2,
    "flashmask/csrc/kernel_avx512.cpp": AVX512,
    "flashmask/csrc/kernel_avx512_bf16.cpp": AVX512_BF16,
}
STABLE_EXTENSIONS = {
    "flashmask._C": {
        "flashmask/csrc/ops.cpp": [],
        "flashmask/csrc/plan.cpp": [],
        "flashmask/csrc/driver.cpp": [],
        "flashmask/csrc/levels.cpp": [],
        "flashmask/csrc/memory.cpp": [],
        "flashmask/csrc/kernel_portable.cpp": [],
        **(X86_ONLY if X86 else {}),
    },
}

# Shared libraries that see neither torch nor Python: module name -> folders of their sources.
PLAIN_LIBRARIES = {"vmm._core": ["vmm/csrc/core", "vmm/csrc/drivers", "vmm/csrc/plugin"]}

# Shared libraries that see all of torch's C++: module name -> sources. They fit one minor version
# of torch, so a wheel for every version is built with PORTABLE=1 and does without them.
TORCH_LIBRARIES = {
    "vmm._torch_cpu": ["vmm/csrc/torch/cpu_hook.cpp", "vmm/csrc/torch/fork_memory.cpp"]
}
# The same, where torch was built with CUDA and the headers of CUDA are there.
CUDA_LIBRARIES = {
    "vmm._torch_cuda": ["vmm/csrc/torch/cuda_subclass.cpp", "vmm/csrc/torch/cuda_snapshot.cpp"]
}


def prefix_maps(*headers: str) -> list[str]:
    """Flags that cut the folders of the build off __FILE__, which reaches users in error messages.

    The last match counts, and torch may be installed below the root.
    """
    prefixes = [f"{path}/" for path in (ROOT, *headers)]
    return [f"-f{kind}-prefix-map={prefix}=" for kind in ("file", "macro") for prefix in prefixes]


def stable_extension(module: str, sources: dict[str, list[str]]) -> Extension:
    """An extension which sees only the stable ABI of torch and the limited API of Python."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    extension = Extension(
        module,
        sources=list(sources),
        include_dirs=include_paths(),
        library_dirs=library_paths(),
        libraries=["torch_cpu"],
        define_macros=[
            ("TORCH_TARGET_VERSION", "0x{:02x}{:02x}000000000000".format(*TORCH_FLOOR)),
            ("Py_LIMITED_API", "0x{:02x}{:02x}0000".format(*PYTHON_FLOOR)),
        ],
        extra_compile_args=DIALECT + LEVEL + prefix_maps(*reversed(include_paths())),
        py_limited_api=True,
        language="c++",
    )
    extension.source_flags = sources
    extension.torch_version = torch.__version__
    return extension


def plain_library(module: str, folders: list[str]) -> Extension:
    """A library with a C interface, which any torch and any Python may open."""
    sources = [
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in sorted((ROOT / folder).glob("*.cpp"))
    ]
    extension = Extension(
        module,
        sources=sources,
        include_dirs=["vmm/csrc"],
        libraries=["dl", "pthread"],
        extra_compile_args=DIALECT + LEVEL + prefix_maps(),
        py_limited_api=True,
        language="c++",
    )
    extension.source_flags = {source: [] for source in sources}
    extension.torch_version = "none"
    return extension


def torch_library(module: str, sources: list[str], device: str = "cpu") -> Extension:
    """A library with a C interface that only the torch it was compiled for can open."""
    import torch
    from torch.utils.cpp_extension import include_paths, library_paths

    headers = include_paths(device)
    extension = Extension(
        module,
        sources=list(sources),
        include_dirs=["vmm/csrc", *headers],
        library_dirs=library_paths(),
        libraries=["c10"] if device == "cpu" else ["c10", "c10_cuda", "torch_cpu", "torch_cuda"],
        extra_compile_args=DIALECT + LEVEL + prefix_maps(*reversed(headers)),
        py_limited_api=True,  # it knows no Python at all
        language="c++",
    )
    extension.source_flags = {source: [] for source in sources}
    extension.torch_version = torch.__version__
    return extension


def cuda_libraries() -> dict[str, list[str]]:
    """The libraries for CUDA, none where they cannot be compiled."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    return CUDA_LIBRARIES if torch.version.cuda and CUDA_HOME and not PORTABLE else {}


class BuildExt(build_ext):
    """setuptools' command plus flags per source, parallel compilation and exact rebuilds."""

    def build_extension(self, ext: Extension) -> None:
        # Python's own link line may name library folders of the machine that Python was built on.
        for linker in ("linker_so", "linker_so_cxx"):
            words = getattr(self.compiler, linker, [])
            words = [word for word in words if not word.startswith(("-L", "-Wl,-rpath"))]
            setattr(self.compiler, linker, words)

        # A file that holds the flags gives them an age: a change of flags rebuilds everything. The
        # folders in them are left out, so that a copy of the tree keeps its objects.
        recipe = Path(OBJECTS, ext.name)
        flags = [word for word in ext.extra_compile_args if "prefix-map" not in word]
        text = f"{self.compiler.compiler_so} {ext.define_macros} {flags} {ext.source_flags}"
        text += f" {ext.torch_version}"
        if not recipe.exists() or recipe.read_text() != text:
            recipe.parent.mkdir(parents=True, exist_ok=True)
            recipe.write_text(text)

        with ThreadPoolExecutor(MAX_JOBS) as pool:
            objects = pool.map(lambda source: self.compile(ext, source, recipe), ext.sources)
        ext.extra_objects = ext.depends = list(objects)
        ext.sources = []  # nothing is left for the base class but to link
        super().build_extension(ext)

    def compile(self, ext: Extension, source: str, recipe: Path) -> str:
        (target,) = self.compiler.object_filenames([source], output_dir=OBJECTS)
        depfile = str(Path(target).with_suffix(".d"))
        if self.force or out_of_date(Path(target), Path(depfile), recipe):
            flags = [*ext.extra_compile_args, *ext.source_flags[source], "-MMD", "-MF", depfile]
            macros, includes = ext.define_macros, ext.include_dirs
            self.compiler.compile([source], OBJECTS, macros, includes, extra_postargs=flags)
        return target


def out_of_date(target: Path, depfile: Path, recipe: Path) -> bool:
    """Whether `target` is missing or older than anything the compiler read to make it."""
    if not (target.exists() and depfile.exists()):
        return True
    words = re.split(r"(?<!\\)\s+", depfile.read_text().replace("\\\n", " ").strip())
    inputs = [recipe, *(Path(word.replace("\\ ", " ")) for word in words[1:])]
    made = target.stat().st_mtime
    return any(not path.exists() or path.stat().st_mtime > made for path in inputs)


if BUILD_NATIVE:
    setup(
        ext_modules=[
            *(stable_extension(*row) for row in STABLE_EXTENSIONS.items()),
            *(plain_library(*row) for row in PLAIN_LIBRARIES.items()),
            *(torch_library(*row) for row in TORCH_LIBRARIES.items() if not PORTABLE),
            *(torch_library(*row, device="cuda") for row in cuda_libraries().items()),
        ],
        cmdclass={"build_ext": BuildExt},
        options={"bdist_wheel": {"py_limited_api": f"cp{PYTHON_FLOOR[0]}{PYTHON_FLOOR[1]}"}},
    )
else:
    setup()
