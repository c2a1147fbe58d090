# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``ls``: what a checkpoint holds, per pattern of names."""

import argparse
import json
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

from flexckpt.index import Entry, SourceIndex
from flexckpt.io.detect import read_index
from flexckpt.wording import dtype_text, patterns, size_text, template, tensor_text


class Row(NamedTuple):
    """Tensors of one pattern: how many, what each is, in how many shards at most, bytes of all."""

    pattern: str
    tensors: int
    states: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    shards: int
    bytes: int


def add_to(commands: Any) -> None:
    parser: argparse.ArgumentParser = commands.add_parser("ls", help="what a checkpoint holds")
    parser.add_argument("source", metavar="SRC", help="a checkpoint of any known layout")
    parser.add_argument("--json", action="store_true", help="for machines: one object per tensor")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    index = read_index(options.source)
    if options.json:
        print(json.dumps(as_json(index), indent=1))
    else:
        show(index)


def rows(entries: Iterable[Entry]) -> list[Row]:
    """Entries whose names differ in numbers only, and that are alike else, as one row."""
    states: dict[tuple[str, tuple[int, ...], str], dict[str, list[Entry]]] = {}
    for entry in entries:
        kind = entry.key, entry.shape, dtype_text(entry.dtype)
        states.setdefault(kind, {})[entry.state] = [entry]
    groups: dict[tuple[Any, ...], dict[str, list[Entry]]] = {}
    for (key, shape, dtype), found in states.items():
        group = groups.setdefault((template(key), tuple(found), shape, dtype), {})
        group[key] = [entry for one in found.values() for entry in one]
    out = []
    for (_, names, shape, dtype), keys in groups.items():
        every = [entry for group in keys.values() for entry in group]
        shards = max(len({s[:3] for s in entry.shards}) for entry in every)
        size = sum(prod(entry.shape) * entry.dtype.itemsize for entry in every)
        ((pattern, count),) = patterns(keys)
        out.append(Row(pattern, count, names, shape, dtype, shards, size))
    return out


def as_json(index: SourceIndex) -> dict[str, Any]:
    """What the index says, with a row per tensor and state."""
    return {
        "layout": index.layout,
        "files": [str(path) for path in index.files],
        "tensors": [
            {
                "key": entry.key,
                "state": entry.state,
                "shape": list(entry.shape),
                "dtype": dtype_text(entry.dtype),
                "shards": len(entry.shards),
            }
            for entry in index.entries.values()
        ],
        "aliases": index.aliases,
        "extra": index.extra,
    }


def show(index: SourceIndex) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor", overflow="fold")
    for name in ("count", "states", "each", "shards", "size"):
        table.add_column(name, justify="left" if name in ("states", "each") else "right")
    found = rows(index.entries.values())
    for row in found:
        table.add_row(
            row.pattern,
            str(row.tensors),
            ", ".join(row.states),
            tensor_text(row.shape, row.dtype),
            str(row.shards),
            size_text(row.bytes),
        )
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 200  # a file has no edge that names would have to be folded at
    total = sum(row.bytes for row in found)
    keys = len({entry.key for entry in index.entries.values()})
    console.print(table)
    console.print(
        f"\nlayout {index.layout}; {keys} keys, {len(index.entries)} with their states; "
        f"{size_text(total)}; {len(index.files)} file{'s' * (len(index.files) != 1)}",
        soft_wrap=True,
    )
