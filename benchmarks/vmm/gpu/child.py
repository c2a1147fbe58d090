# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs one function in a process of its own, with a time limit; the answer travels as JSON.

python -m benchmarks.vmm.gpu.child MODULE:FUNCTION ARGUMENTS ANSWER_FILE
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError

KINDS = {"failed": FailedError, "skipped": SkippedError}


class TimeLimitError(Exception):
    pass


def call_in_process(
    target: str,
    arguments: Sequence[Any],
    variables: dict[str, str],
    seconds: float,
    wrapper: Sequence[str] = (),
) -> Any:
    """What ``module:function`` returns for the arguments.

    A dictionary among the arguments becomes a `Context`. `wrapper` goes in front of the command.

    Raises:
        FailedError, SkippedError: as the function did, or because the process died.
        TimeLimitError: it took longer than `seconds`; the process and its children were ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "answer.json")
        words = [*wrapper, sys.executable, "-m", "benchmarks.vmm.gpu.child"]
        words += [target, json.dumps(list(arguments)), str(answer)]
        process = subprocess.Popen(
            words,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TimeLimitError(f"it took longer than {seconds:.0f} s") from None
        if answer.exists():
            found = json.loads(answer.read_text())
            if found["kind"] in KINDS:
                raise KINDS[found["kind"]](found["value"])
            if process.returncode == 0:
                return found["value"]
        last = " | ".join(output.strip().splitlines()[-3:])
        raise FailedError(f"the process ended with status {process.returncode}: {last}")


def main(target: str, arguments: str, answer: str) -> int:
    module, _, name = target.partition(":")
    words = [
        Context(word["rehearse"], word["seconds"], Path(word["folder"]))
        if isinstance(word, dict)
        else word
        for word in json.loads(arguments)
    ]
    try:
        found = {"kind": "ok", "value": getattr(importlib.import_module(module), name)(*words)}
    except FailedError as failed:
        found = {"kind": "failed", "value": str(failed)}
    except SkippedError as skipped:
        found = {"kind": "skipped", "value": str(skipped)}
    Path(answer).write_text(json.dumps(found))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
