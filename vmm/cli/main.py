# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Finds the command and turns what users did wrong into one line."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from vmm.errors import VmmError

# Command -> what it does. `vmm.cli.<command>` is its module.
COMMANDS = {
    "replay": "run a trace through allocators and compare them",
    "view": "show a recording or a snapshot as one HTML page, or as text",
    "convert": "turn any supported memory trace into a vmm-trace, or check it",
    "generate": "write the trace of a modelled workload",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; the exit status is 0, 1 (it failed) or 2 (wrong usage)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="python -m vmm", description=importlib.import_module("vmm").__doc__
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in COMMANDS.items():
        command = commands.add_parser(name, help=help_text, description=help_text)
        # Only the command that is asked for is imported.
        if name in words[:1]:
            importlib.import_module(f"vmm.cli.{name}").add_arguments(command)
    parsed = parser.parse_args(words)
    try:
        return int(importlib.import_module(f"vmm.cli.{parsed.command}").run(parsed))
    except BrokenPipeError:
        return 0
    except (VmmError, OSError) as error:
        print(f"vmm {parsed.command}: {error}", file=sys.stderr)
        return 1
