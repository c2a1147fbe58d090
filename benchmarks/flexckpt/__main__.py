# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How fast, how small and how exact are loads, saves and conversions?

    python -m benchmarks.flexckpt [NAME...] [--size 1GiB] [--rounds 5] [--json FILE]

Each NAME answers one question; all of them run if none is given. Peers run in the same run,
interleaved, and medians are reported. Files go to a temporary folder below --workdir.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from benchmarks.flexckpt.settings import Settings, parse_size
from benchmarks.timing import environment, write

# Name -> module with run(settings) -> dict, and its question.
QUESTIONS = {
    "reshard": "load and save a sharded state, in the same layout and across",
    "megatron": "the same beside Megatron-Core",
    "zero": "DeepSpeed ZeRO to another world size and to Hugging Face",
    "fuse": "Hugging Face to a fused tensor-parallel model",
    "merge": "sharded checkpoint to Hugging Face",
    "planning": "how long planning takes with many tensors and ranks",
    "async_save": "how long training waits for an asynchronous save",
    "memory": "memory of a conversion, and bytes read",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.flexckpt",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"{name:12} {text}" for name, text in QUESTIONS.items()),
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which to run; all if none")
    parser.add_argument("--size", default="1GiB", help="bytes of a checkpoint (64MiB, 2GiB)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, 5 unless told")
    parser.add_argument("--workdir", default=None, help="where files may go for the time of a run")
    parser.add_argument("--json", metavar="FILE", help="write the JSON there instead of to stdout")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in QUESTIONS]
    if unknown:
        parser.error(f"NAME must be one of {', '.join(QUESTIONS)}, not {unknown[0]}")

    results: dict[str, Any] = {}
    failed = False
    for name in options.names or QUESTIONS:
        print(f"{name}: {QUESTIONS[name]}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=options.workdir, prefix="flexckpt-bench-") as folder:
            settings = Settings(parse_size(options.size), options.rounds, Path(folder).resolve())
            try:
                results[name] = importlib.import_module(f"benchmarks.flexckpt.{name}").run(settings)
            except Exception as error:
                traceback.print_exc()
                results[name] = {"failed": str(error)}
                failed = True
        print(json.dumps(results[name], indent=1), file=sys.stderr, flush=True)
    whole = {"benchmark": "flexckpt", "size": options.size, "rounds": options.rounds}
    write(options.json, {**whole, "environment": environment(), "results": results})
    sys.exit(failed)


if __name__ == "__main__":
    main()
