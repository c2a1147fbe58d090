# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The mapping on the command line: a file of AOA text."""

import argparse
from pathlib import Path

from flexckpt.errors import FlexckptError


def add_mapping(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--aoa", metavar="FILE", help="the mapping; equal names stay as they are")
    parser.add_argument(
        "--reverse", action="store_true", help="FILE says the opposite direction; invert it"
    )
    parser.add_argument(
        "--layout",
        choices=("paddle", "torch"),
        default="paddle",
        help="of linear layers, [in, out] or [out, in]: the axis of fuse macros that name none",
    )


def read_mapping(path: str | None) -> str | None:
    """The text of the file.

    Raises:
        FlexckptError: ARG101 if it cannot be read as text.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise FlexckptError("ARG101", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FlexckptError("ARG101", f"{path} is not UTF-8 text: {error.reason}") from None
