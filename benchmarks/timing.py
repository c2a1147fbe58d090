# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Interleaved timing: every contender runs once per round, so that drift hits all of them alike."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def interleaved(
    contenders: dict[str, Callable[[], Any]], *, rounds: int = 7, budget_s: float = 8.0
) -> dict[str, float]:
    """Median seconds per contender.

    An unmeasured round warms up (and compiles). Then up to `rounds` rounds run; after three of them
    the budget may end the cell early. Very short calls are repeated inside a round until they take
    a millisecond.
    """
    repeats = dict.fromkeys(contenders, 1)
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    began = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - began > budget_s:
            break
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            samples[name].append((time.perf_counter() - start) / repeats[name])
            if done == 0:
                repeats[name] = max(1, min(1000, int(1e-3 / max(samples[name][0], 1e-7))))
    return {name: statistics.median(times) for name, times in samples.items()}


def gemm(dtype: torch.dtype, size: int = 2048) -> tuple[Callable[[], Any], float]:
    """A torch.matmul of `size`^3 and its number of flops: the yardstick of a run."""
    a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
    return lambda: a @ b, 2.0 * size**3


def environment() -> dict[str, Any]:
    """What a reader must know of the machine to place the numbers."""
    info: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        fields = dict(
            (part.strip() for part in line.split(":", 1))
            for line in cpuinfo.read_text().split("\n\n")[0].splitlines()
            if ":" in line
        )
        keys = ("model name", "cpu family", "model")
        info["cpu"] = ", ".join(f"{key} {fields.get(key)}" for key in keys)
    return info


def write(path: str | None, result: dict[str, Any]) -> None:
    """Prints the result as JSON, or puts it into a file."""
    text = json.dumps(result, indent=1)
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text + "\n")
    else:
        print(text)
