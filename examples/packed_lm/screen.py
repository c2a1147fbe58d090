# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the reader sees: a live progress bar in a terminal, plain lines in a log."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from packed_lm.attention import TITLES
from packed_lm.compare import Row, ratio
from packed_lm.training import History

_LOG_LINES = 12  # of a training run, where nothing can be redrawn


class Screen:
    def __init__(self) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console = Console(highlight=False, width=100)

    def headline(self, text: str) -> None:
        self.console.print(f"\n[bold]{text}[/bold]")

    def say(self, text: str) -> None:
        self.console.print(Text(textwrap.indent(text, "  ")), soft_wrap=True)

    def quote(self, text: str) -> None:
        """Show text with a bar at its left, without empty lines and what moves the cursor."""
        lines = [line for line in text.splitlines() if line.strip()]
        text = "\n".join(f"| {line}" for line in lines).expandtabs(4)
        self.say("".join(c if c.isprintable() or c == "\n" else "?" for c in text) + "\n")

    def facts(self, facts: dict[str, str]) -> None:
        width = max(map(len, facts))
        for name, fact in facts.items():
            line = Text.assemble("  ", (f"{name:<{width}}  ", "dim"), fact)
            self.console.print(line, soft_wrap=True)

    @contextmanager
    def training(self, steps: int, seq_len: int) -> Iterator[Callable[[History], None]]:
        """Give a function that shows how far a training run has come."""
        if self.console.is_terminal:
            columns = (
                TextColumn("  step {task.completed}/{task.total}"),
                BarColumn(bar_width=28),
                TextColumn("{task.description}"),
                TimeRemainingColumn(),
            )
            with Progress(*columns, console=self.console) as progress:
                task = progress.add_task("compiling", total=steps)

                def redraw(history: History) -> None:
                    text = _status(history, seq_len)
                    progress.update(task, completed=len(history.losses), description=text)

                yield redraw
            return

        every = max(1, steps // _LOG_LINES)

        def write_line(history: History) -> None:
            done = len(history.losses)
            if done == 1 or done % every == 0 or done == steps:
                self.say(f"step {done:>4}/{steps}  {_status(history, seq_len)}")

        yield write_line

    def comparison(self, rows: Sequence[Row]) -> None:
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("", no_wrap=True)
        for title in (
            "training step",
            "attention\nforward + backward",
            "attention\nforward",
            "making\nthe mask",
            "mask\nmemory",
        ):
            table.add_column(title, justify="right", no_wrap=True)
        for row in rows:
            times = [_cell(rows, row, field) for field in ("step", "both", "forward")]
            build, size = f"{row.build:,.1f} ms", amount(row.bytes)
            style = "bold" if row.kind == "flashmask" else None
            table.add_row(TITLES[row.kind], *times, build, size, style=style)
        self.console.print(Padding(table, (0, 0, 0, 2), expand=False))


def _status(history: History, seq_len: int) -> str:
    # The first step compiles; it says nothing about speed.
    recent = history.seconds[1:][-10:]
    speed = f"{seq_len / statistics.median(recent):>6,.0f} bytes/s" if recent else "compiled"
    return f"loss {history.losses[-1]:.3f} nats  {speed}"


def _cell(rows: Sequence[Row], row: Row, field: str) -> str:
    value = getattr(row, field)
    if value is None:
        return "-"
    times = "" if row.kind == "flashmask" else f"{ratio(rows, row.kind, field):.1f}x"
    return f"{value:,.0f} ms {times:>6}" if value >= 10 else f"{value:,.1f} ms {times:>6}"


def amount(size: int) -> str:
    """Return a number of bytes for people."""
    if size < 1024:
        return f"{size} B"
    if size < 1024**2:
        return f"{size / 1024:,.0f} KiB"
    return f"{size / 1024**2:,.1f} MiB"
