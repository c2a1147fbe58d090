# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From words on the command line to a command and its exit code."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from flexckpt.cli import codes, convert, explain, ls, recipes, verify
from flexckpt.errors import FlexckptError

COMMANDS = (ls, explain, convert, verify, recipes, codes)

SUCCESS, FAILURE, INTERRUPTED = 0, 1, 130


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flexckpt",
        description="Checkpoints of any layout into any other.",
        epilog="Exit code: 0 done, 1 refused with one sentence, 2 wrong usage.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_to(commands)
    return parser


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """One line instead of the place in the code, which tells a user nothing."""
    print(f"warning: {message}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of flexckpt become one message on stderr.

    Args:
        arguments: the words behind ``python -m flexckpt``; those of this process if None.

    Returns:
        The exit code.
    """
    options = make_parser().parse_args(arguments)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = show_warning
            options.run(options)
        sys.stdout.flush()
    except FlexckptError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILURE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Who reads our output has seen enough; keep Python from complaining at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SUCCESS
    return SUCCESS
