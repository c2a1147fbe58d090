# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``recipes``: the ready mappings of model families."""

import argparse
from typing import Any


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "recipes", help="ready mappings of model families"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from flexckpt import recipes

    for name in recipes.names():
        sentence = " ".join(recipes.describe(name).split()).partition(". ")[0]
        print(f"{name:24} {sentence}")
