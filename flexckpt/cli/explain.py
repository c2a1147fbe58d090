# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``explain``: what a mapping would do, before anything is moved."""

import argparse
import json
from typing import Any

from flexckpt.cli.mapping import add_mapping, mapping_of


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "explain", help="what a mapping would do; moves nothing"
    )
    parser.add_argument("source", metavar="SRC", help="a checkpoint of any known layout")
    parser.add_argument(
        "target", metavar="DST", nargs="?", help="a checkpoint with the wanted names and shapes"
    )
    add_mapping(parser)
    parser.add_argument("--json", action="store_true", help="for machines: a row per tensor")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from flexckpt.api.explain import explain

    explanation = explain(
        options.source,
        options.target,
        aoa=mapping_of(options),
        reverse=options.reverse,
        layout=options.layout,
    )
    if options.json:
        print(json.dumps(explanation.json(), indent=1))
    else:
        print(explanation.text(), end="")
