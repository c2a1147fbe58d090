# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How long one allocation and one free take: `python -m benchmarks.vmm.hot_path`.

The requests are served from memory that the allocator holds already, over the null driver. Beside
it run glibc, jemalloc and mimalloc where their libraries can be opened, and the CPU allocator of
torch, on the same sequence. Rounds are interleaved, and medians over them are reported. The program
that measures, hot_path.cpp, is compiled with g++ into a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# Heap -> names under which the loader may find it.
LIBRARIES = {
    "jemalloc": ("libjemalloc.so.2",),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc.so.2.0", "libmimalloc.so.3"),
}
FIGURES = (
    "alloc_p50_ns",
    "alloc_p99_ns",
    "free_p50_ns",
    "free_p99_ns",
    "operations_per_second",
    "clock_ns",
)
TARGETS = {
    "alloc_p50_ns": 60,
    "free_p50_ns": 60,
    "alloc_p99_ns": 500,
    "free_p99_ns": 500,
    "operations_per_second": 3_000_000,
}


def build(folder: Path) -> Path:
    program = folder / "hot_path"
    command = ["g++", "-std=c++20", "-O3", "-march=native", f"-I{ROOT / 'vmm' / 'csrc'}"]
    command += [str(HERE / "hot_path.cpp"), "-o", str(program), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return program


def torch_heap(folder: Path) -> tuple[Path, str] | None:
    """A library around torch's CPU allocator, and the folder of the libraries that it needs."""
    from torch.utils.cpp_extension import include_paths, library_paths

    library = folder / "torch_heap.so"
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", str(HERE / "torch_heap.cpp")]
    command += [f"-I{path}" for path in include_paths()]
    command += [f"-L{path}" for path in library_paths()] + ["-lc10", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"torch's CPU allocator is left out: {done.stderr.strip()[:300]}", file=sys.stderr)
        return None
    return library, os.pathsep.join(library_paths())


def loadable(names: tuple[str, ...]) -> str | None:
    """The first name that the loader finds. Another process tries: a heap is not opened twice."""
    for name in names:
        script = f"import ctypes; ctypes.CDLL({name!r})"
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, env=environment()
        )
        if done.returncode == 0:
            return name
    return None


def environment(more_libraries: str = "") -> dict[str, str]:
    variables = dict(os.environ)
    # Heaps that are opened late want thread-local space that glibc keeps little of.
    variables["GLIBC_TUNABLES"] = "glibc.rtld.optional_static_tls=65536"
    paths = [path for path in (more_libraries, variables.get("LD_LIBRARY_PATH", "")) if path]
    if paths:
        variables["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return variables


def medians(lines: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Mix -> heap -> figure -> the median over the rounds."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for line in lines:
        row = json.loads(line)
        for figure in FIGURES:
            if figure in row:
                found[row["mix"], row["heap"], figure].append(row[figure])
    result: dict[str, dict[str, dict[str, float]]] = {}
    for (mix, heap, figure), values in found.items():
        cell = result.setdefault(mix, {}).setdefault(heap, {})
        cell[figure] = round(statistics.median(values), 1)
    return result


def show(result: dict[str, dict[str, dict[str, float]]], threads: int) -> None:
    from rich.console import Console
    from rich.table import Table

    for mix, heaps in result.items():
        table = Table(title=f"{mix}, 2000 live blocks")
        for title in ("heap", "alloc p50", "p99", "free p50", "p99", f"{threads} threads"):
            table.add_column(title, justify="left" if title == "heap" else "right")
        for heap, row in heaps.items():
            times = [f"{row[figure]:,.0f} ns" for figure in FIGURES[:4]]
            table.add_row(heap, *times, f"{row['operations_per_second'] / 1e6:.1f} M/s")
        Console().print(table)


def measure(rounds: int, threads: int, operations: int, library: str | None) -> dict[str, Any]:
    from vmm import native

    missing = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        heaps = []
        for heap, names in LIBRARIES.items():
            found = loadable(names)
            if found is None:
                missing.append(heap)
            else:
                heaps.append(f"{heap}={found}")
        torch_library = torch_heap(folder)
        if torch_library is None:
            missing.append("torch CPU")
        else:
            heaps.append(f"torch CPU={torch_library[0]}")
        words = [str(program), str(rounds), str(threads), str(operations)]
        words += [library or str(native.library_path()), *heaps]
        variables = environment(torch_library[1] if torch_library else "")
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=variables, check=True)
    return {"missing": missing, "results": medians(done.stdout.splitlines())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--operations", type=int, default=200_000)
    parser.add_argument("--library", help="another build of the core library")
    parser.add_argument("--json", help="write the figures into this file")
    arguments = parser.parse_args()
    if shutil.which("g++") is None:
        print("hot_path: g++ is not installed", file=sys.stderr)
        return 1
    from benchmarks import timing

    found = measure(arguments.rounds, arguments.threads, arguments.operations, arguments.library)
    show(found["results"], arguments.threads)
    if found["missing"]:
        print(f"could not be opened here: {', '.join(found['missing'])}")
    if arguments.json:
        settings = {"rounds": arguments.rounds, "threads": arguments.threads, "live": 2000}
        settings["operations"] = arguments.operations
        head = {"environment": timing.environment(), "settings": settings, "targets": TARGETS}
        timing.write(arguments.json, {**head, **found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
