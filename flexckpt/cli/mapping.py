# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The mapping on the command line: a file of AOA text, or a recipe."""

import argparse
import json
from pathlib import Path

from flexckpt.errors import FlexckptError


def add_mapping(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--aoa", metavar="FILE", help="the mapping; equal names stay as they are")
    which.add_argument("--recipe", metavar="NAME", help="a ready mapping; `recipes` lists them")
    parser.add_argument(
        "--config", metavar="FILE", help="config.json for the recipe; that beside SRC unless told"
    )
    parser.add_argument(
        "--reverse", action="store_true", help="the mapping says the opposite direction; invert it"
    )
    parser.add_argument(
        "--layout",
        choices=("paddle", "torch"),
        default="paddle",
        help="of linear layers, [in, out] or [out, in]: the axis of fuse macros that name none",
    )


def mapping_of(options: argparse.Namespace) -> str | None:
    """The text of the mapping that the options name.

    Raises:
        FlexckptError: ARG101 if a file cannot be read, or there is no such recipe, or it does not
            fit the configuration.
    """
    if options.recipe is None:
        return None if options.aoa is None else _read(Path(options.aoa))
    from flexckpt import recipes

    source = Path(options.source)
    beside = (source if source.is_dir() else source.parent) / "config.json"
    if options.config is None and not beside.exists():
        raise FlexckptError("ARG101", f"there is no {beside}; say with --config which one it is")
    path = beside if options.config is None else Path(options.config)
    try:
        config = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FlexckptError):
            raise
        raise FlexckptError("ARG101", f"{path} is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise FlexckptError("ARG101", f"{path} must hold an object, not a {type(config).__name__}")
    return recipes.load(options.recipe, config)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise FlexckptError("ARG101", f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FlexckptError("ARG101", f"{path} is not UTF-8 text: {error.reason}") from None
