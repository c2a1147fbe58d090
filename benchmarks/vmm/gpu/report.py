# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The checks as tables for a terminal."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table

COLORS = {"passed": "green", "skipped": "yellow", "failed": "red", "timed out": "red"}


def flat(figures: Any) -> str:
    """Figures that are neither rows nor long, as one line."""
    if not isinstance(figures, dict):
        return str(figures)
    parts = []
    for name, value in figures.items():
        if isinstance(value, list):
            parts.append(f"{len(value)} {name}")
        elif isinstance(value, dict):
            parts.append(f"{name}: {flat(value)}")
        else:
            parts.append(f"{name} {value}")
    return ", ".join(parts)


def rows_table(title: str, rows: list[dict[str, Any]]) -> Table:
    table = Table(title=title)
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values())
        )
    return table


def show(results: list[dict[str, Any]], console: Console | None = None) -> None:
    console = console or Console(width=None if sys.stdout.isatty() else 150)
    table = Table(title="checks")
    for name in ("check", "", "status", "seconds", ""):
        table.add_column(name)
    for row in results:
        color = COLORS[row["status"]]
        said = row.get("reason") or flat(row.get("figures", ""))
        status = f"[{color}]{row['status']}[/{color}]"
        table.add_row(row["check"], row["title"], status, f"{row['seconds']:.1f}", said)
    for row in results:
        figures = row.get("figures")
        if isinstance(figures, dict) and figures.get("rows"):
            console.print(rows_table(f"{row['check']}: {row['title']}", figures["rows"]))
    console.print(table)
