# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What can only be known with a GPU: `python -m benchmarks.vmm.gpu_check`.

Nine checks, each in its own process and with its own time limit, under eight minutes together. One
that fails does not stop the others. Snapshots and the result, gpu_check.json, go into --folder.

With --rehearse the same code runs on the host driver and its virtual streams, which shows that the
checks work and says nothing about a GPU.

The checks have not been run on a GPU yet: only rehearsed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

NO_GPU = "gpu-check: torch.cuda.is_available() is False on this machine. Nothing was checked."


def machine() -> dict[str, Any]:
    import torch

    from benchmarks import timing

    found = timing.environment()
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        found |= {"gpu": properties.name, "gpu_bytes": properties.total_memory}
        found |= {"cuda": torch.version.cuda, "devices": torch.cuda.device_count()}
    return found


def write(path: Path, result: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(part, path)


def main(words: list[str] | None = None) -> int:
    from benchmarks.vmm.gpu.checks import CHECKS, make

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rehearse", action="store_true", help="on the host driver, without a GPU")
    parser.add_argument("--only", nargs="+", choices=list(CHECKS), help="some of the checks")
    parser.add_argument("--folder", type=Path, default=Path("build/gpu_check"))
    arguments = parser.parse_args(words)

    import torch

    if not arguments.rehearse and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 1
    from benchmarks.vmm.gpu.report import show

    arguments.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"rehearsal": arguments.rehearse, "machine": machine(), "checks": []}
    for name in arguments.only or CHECKS:
        print(f"{name} {CHECKS[name].title} ...", file=sys.stderr, flush=True)
        row = make(name, rehearse=arguments.rehearse, folder=arguments.folder.resolve())
        result["checks"].append(row)
        write(arguments.folder / "gpu_check.json", result)  # what is known so far outlives a stop
    show(result["checks"])
    bad = [row["check"] for row in result["checks"] if row["status"] in ("failed", "timed out")]
    if bad:
        print(f"gpu-check: {', '.join(bad)} did not pass", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
