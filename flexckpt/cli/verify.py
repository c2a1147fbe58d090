# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``verify``: whether a checkpoint is whole, and its bytes those that were written."""

import argparse
from typing import Any

from flexckpt.api.verify import verify
from flexckpt.cli.progress import shown_progress
from flexckpt.wording import size_text


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify", help="check sizes and checksums of a checkpoint"
    )
    parser.add_argument("source", metavar="SRC", help="a checkpoint of any known layout")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    with shown_progress(options.quiet) as progress:
        found = verify(options.source, progress=progress)
    if options.quiet:
        return
    print(f"{options.source}: {found.layout}, {found.shards} shards are where the index says")
    if found.summed:
        print(f"checksums of {size_text(found.summed)} match")
    else:
        print("this layout stores no checksums; only sizes could be checked")
