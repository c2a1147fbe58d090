# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``codes``: every error code and what it means."""

import argparse
from typing import Any

from flexckpt.codes import CODES

FAMILIES = {
    "AOA1": "The mapping is not a program",
    "AOA2": "A macro cannot be expanded",
    "AOA3": "The program does not fit the tensors",
    "AOA4": "The inverse does not exist",
    "CKP1": "Files of a checkpoint",
    "CKP2": "Contents of a checkpoint",
    "LAY1": "Layouts and targets",
    "NET1": "Several processes",
    "INT1": "Other packages",
    "ARG1": "Arguments of functions",
}

HEAD = """\
# Errors of flexckpt

Every error is a `flexckpt.FlexckptError` with a stable `code`. This page is made by
`python -m flexckpt codes --markdown`.
"""


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "codes", help="error codes and what they mean"
    )
    parser.add_argument("--markdown", action="store_true", help="as the page of the documentation")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    print(markdown() if options.markdown else plain(), end="")


def plain() -> str:
    return "".join(f"{code}  {meaning}\n" for code, meaning in CODES.items())


def markdown() -> str:
    """The text of docs/flexckpt_errors.md."""
    text = HEAD
    for family, title in FAMILIES.items():
        text += f"\n## {family}xx: {title}\n\n| code | meaning |\n|---|---|\n"
        rows = [(code, meaning) for code, meaning in CODES.items() if code.startswith(family)]
        text += "".join(f"| {code} | {meaning} |\n" for code, meaning in rows)
    return text
