# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The checks as a table, and how one of them is made."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.vmm.gpu.child import TimeLimitError, call_in_process
from benchmarks.vmm.gpu.context import FailedError, SkippedError

HERE = "benchmarks.vmm.gpu"


class Check(NamedTuple):
    title: str
    module: str
    seconds: float  # at most; the sum is below eight minutes
    tool: str = ""  # a program that watches it, where it is installed


CHECKS = {
    "G1": Check("calls of the driver by page size and batch", "call_costs", 40),
    "G2": Check("content follows a page to another address", "remapping", 20),
    "G3": Check("two addresses of a page show the same", "aliasing", 30),
    "G4": Check("pages leave only after the work on them", "unmapping", 35),
    "G4s": Check("the same under compute-sanitizer", "unmapping", 75, "compute-sanitizer"),
    "G5": Check("replays on torch's allocators and ours", "replays", 150),
    "G6": Check("a captured graph replays on pages that stay", "graphs", 35),
    "G7": Check("training has the same losses", "training", 50),
    "G8": Check("snapshots of torch for its simulators", "snapshots", 35),
}


def make(name: str, *, rehearse: bool, folder: Path) -> dict[str, Any]:
    """Runs one check in its own process. What went wrong is in the row, never raised."""
    check = CHECKS[name]
    row: dict[str, Any] = {"check": name, "title": check.title}
    wrapper: list[str] = []
    began = time.perf_counter()
    try:
        if check.tool:
            found = shutil.which(check.tool)
            if found is None or rehearse:
                raise SkippedError(
                    f"{check.tool} is not on the path" if found is None else "it watches a GPU"
                )
            wrapper = [found, "--tool", "memcheck", "--error-exitcode", "9"]
        context = {"rehearse": rehearse, "seconds": check.seconds, "folder": str(folder)}
        target = f"{HERE}.{check.module}:run"
        row["figures"] = call_in_process(target, [context], {}, check.seconds, wrapper)
        row["status"] = "passed"
    except SkippedError as skipped:
        row |= {"status": "skipped", "reason": str(skipped)}
    except TimeLimitError as late:
        row |= {"status": "timed out", "reason": str(late)}
    except FailedError as failed:
        row |= {"status": "failed", "reason": str(failed)}
    row["seconds"] = round(time.perf_counter() - began, 1)
    return row
