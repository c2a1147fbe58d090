# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``convert`` and ``merge``: one checkpoint becomes another."""

import argparse
from typing import Any

from flexckpt.cli.mapping import add_mapping, mapping_of
from flexckpt.cli.progress import shown_progress

LAYOUTS = ("hf", "flexckpt", "dcp", "universal")


def add_to(commands: Any) -> None:
    convert: argparse.ArgumentParser = commands.add_parser(
        "convert", help="rewrite a checkpoint in another layout, with a mapping"
    )
    _add_paths(convert)
    add_mapping(convert)
    convert.add_argument(
        "--to", choices=LAYOUTS, default="hf", help="layout to write; hf unless told"
    )
    convert.add_argument(
        "--like", metavar="PATH", help="a checkpoint with the names and shapes that DST is to have"
    )
    convert.add_argument(
        "--states",
        nargs="+",
        metavar="STATE",
        help="only these, as in: --states weight exp_avg; all that the layout can hold unless told",
    )
    convert.set_defaults(run=run)
    merge: argparse.ArgumentParser = commands.add_parser(
        "merge", help="whole tensors in Hugging Face files, under their own names"
    )
    _add_paths(merge)
    merge.set_defaults(run=run, to="hf", **dict.fromkeys(("aoa", "recipe", "states", "like")))
    merge.set_defaults(reverse=False, layout="paddle")


def _add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SRC", help="a checkpoint of any known layout")
    parser.add_argument("target", metavar="DST", help="the folder to write")
    parser.add_argument(
        "--shard-size", default="5GB", metavar="SIZE", help="largest file; 5GB unless told"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(options: argparse.Namespace) -> None:
    from flexckpt.api.convert import convert

    with shown_progress(options.quiet) as progress:
        convert(
            options.source,
            options.target,
            aoa=mapping_of(options),
            to=options.to,
            shard_size=options.shard_size,
            reverse=options.reverse,
            layout=options.layout,
            states=options.states,
            like=options.like,
            progress=progress,
        )
