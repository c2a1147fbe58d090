# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Numbers and tables as text."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(size: float) -> str:
    """A number of bytes in the largest unit that it has at least one of: ``"1.50 MiB"``."""
    unit = 0
    while abs(size) >= 1024 and unit < len(_UNITS) - 1:
        size /= 1024
        unit += 1
    return f"{size:.0f} B" if unit == 0 else f"{size:.2f} {_UNITS[unit]}"


def table_text(*tables: Table) -> str:
    """Tables as plain text, as wide as they need to be."""
    from rich.console import Console

    out = io.StringIO()
    console = Console(file=out, width=160, color_system=None, force_terminal=False)
    for table in tables:
        console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def new_table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.ASCII)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table
