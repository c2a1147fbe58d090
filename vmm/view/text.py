# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The recording in a terminal: the peak, who holds it, free runs, the curve as one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import numpy as np
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vmm.view import curves, free_runs
from vmm.view.recording import ALIAS, MOVE, Column, Recording
from vmm.view.top import Share, shares
from vmm.view.words import both_bytes, duration, short_bytes, sparkline

TOP = 10
SPARK = 56


def print_recording(recording: Recording, file: IO[str] | None = None) -> None:
    """Prints one recording to ``file`` (standard output)."""
    console = Console(file=file, highlight=False)
    console.print(_header(recording))
    if not len(recording):
        console.print(Text("The file holds no events."))
        return
    live = curves.live(recording)
    peak = curves.peak_event(recording, live)
    console.print(_facts(recording))
    console.print(_spark(recording))
    for by in ("tag", "stack"):
        if np.any(recording.blocks[by]):
            console.print(_shares_table(f"Live at the peak by {by}", shares(recording, peak, by)))
    if recording.has_addresses and recording.has_ranges:
        console.print(_runs_table(free_runs.free_runs(recording, peak)))


def print_diff(first: Recording, second: Recording, file: IO[str] | None = None) -> None:
    """Prints how the second recording differs from the first to ``file`` (standard output)."""
    console = Console(file=file, highlight=False)
    pair = (first, second)
    for letter, each in zip("AB", pair, strict=True):
        console.print(_header(each, f"{letter}: "))
    most = max(curves.peak(each, curves.live(each)) for each in pair)
    for each in pair:
        console.print(_spark(each, most))
    table = _diff_table("", "A", "B", "B - A")
    for name, values in _compared(pair):
        table.add_row(name, *map(both_bytes, values), _signed(values[1] - values[0]))
    console.print(table)
    for by in ("tag", "stack"):
        if any(np.any(each.blocks[by]) for each in pair):
            console.print(_growth(pair, by))


def _header(recording: Recording, before: str = "") -> Text:
    text = Text.assemble(before, (recording.name, "bold"), f" — {recording.kind}")
    if recording.first_event or len(recording) - recording.start_events != recording.file_events:
        end = recording.first_event + len(recording) - recording.start_events
        text.append(f", events {recording.first_event:,} to {end - 1:,}")
    return text


def _facts(recording: Recording) -> RenderableType:
    live, held = curves.live(recording), curves.held(recording)
    peak = curves.peak_event(recording, live)
    grid = Table.grid(padding=(0, 2))

    def row(name: str, value: str) -> None:
        grid.add_row(Text(name, style="dim"), Text(value))

    number = peak - recording.start_events + recording.first_event
    where = f"event {number:,}" if peak >= recording.start_events else "the start"
    where += f", {duration(int(recording.t_ns[peak]))}" if recording.timed else ""
    row("peak live", f"{both_bytes(int(live[peak]))} at {where}")
    asked = int(curves.live(recording, "requested")[peak])
    row("requested then", both_bytes(asked))
    if recording.has_ranges:
        most = curves.peak(recording, held)
        row("peak held", both_bytes(most))
        row("fragmentation", f"{100 * (1 - live[peak] / most) if most else 0:.2f} %")
    row("live at the end", both_bytes(int(live[-1])))
    ops = {letter: int(np.count_nonzero(recording.op == ord(letter))) for letter in "afowys"}
    row("events", f"{len(recording) - recording.start_events:,}")
    row("blocks", f"{ops['a']:,}, {ops['f']:,} freed")
    if recording.has_pages:
        steals = np.isin(recording.maps["cause"], (MOVE, ALIAS)) & (recording.maps["birth"] >= 0)
        row("stolen pages", f"{int(steals.sum()):,}")
    marks = {"out of memory": "o", "waits": "w", "syncs": "ys"}
    for name, letters in marks.items():
        if count := sum(ops[letter] for letter in letters):
            row(name, f"{count:,}")
    if not recording.has_addresses:
        row("note", "the file has no addresses, so there are no free runs")
    return grid


def _spark(recording: Recording, most: int | None = None) -> RenderableType:
    live = curves.live(recording)
    top = curves.peak(recording, live) if most is None else most
    line = sparkline(live[max(0, recording.start_events - 1) :], top, SPARK)
    return Text.assemble(("live  ", "dim"), (line, "blue"), (f"  to {short_bytes(top)}", "dim"))


def _shares_table(title: str, found: Sequence[Share]) -> RenderableType:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in ("bytes", "blocks", "share"):
        table.add_column(name, justify="right")
    total = sum(share.bytes for share in found) or 1
    rest = found[TOP:]
    shown = list(found[:TOP])
    if rest:
        texts = (sum(each.bytes for each in rest), sum(each.blocks for each in rest))
        shown.append(Share(f"{len(rest)} others", *texts))
    for share in shown:
        part = f"{100 * share.bytes / total:.1f} %"
        table.add_row(Text(share.name), short_bytes(share.bytes), f"{share.blocks:,}", part)
    return Group(Text(), table)


def _runs_table(runs: Column) -> RenderableType:
    table = Table(title="Free runs at the peak", title_justify="left", box=None, pad_edge=False)
    table.add_column("size")
    for name in ("runs", "bytes"):
        table.add_column(name, justify="right")
    table.add_column("")
    counts = free_runs.histogram(runs)
    place = np.searchsorted(free_runs.BOUNDS, runs, side="right")
    sizes = np.bincount(place, weights=runs, minlength=len(counts)).astype(np.int64)
    most = int(sizes.max(initial=0)) or 1
    for label, count, size in zip(free_runs.LABELS, counts, sizes, strict=True):
        bar = Text("█" * round(24 * int(size) / most), style="blue")
        table.add_row(label, f"{count:,}", short_bytes(int(size)), bar)
    return Group(Text(), table)


def _compared(pair: Sequence[Recording]) -> list[tuple[str, list[int]]]:
    rows = [
        ("peak live", [curves.peak(each, curves.live(each)) for each in pair]),
        ("live at the end", [int(curves.live(each)[-1]) if len(each) else 0 for each in pair]),
    ]
    if all(each.has_ranges for each in pair):
        rows.insert(1, ("peak held", [curves.peak(each, curves.held(each)) for each in pair]))
    return rows


def _growth(pair: Sequence[Recording], by: str) -> RenderableType:
    found = [
        {s.name: s.bytes for s in shares(each, curves.peak_event(each, curves.live(each)), by)}
        for each in pair
    ]
    names = found[0].keys() | found[1].keys()
    change = {name: found[1].get(name, 0) - found[0].get(name, 0) for name in names}
    table = _diff_table(f"Live at the peak by {by}", "A", "B", "B - A")
    for name in sorted(names, key=lambda name: (-abs(change[name]), name))[:TOP]:
        values = [short_bytes(each.get(name, 0)) for each in found]
        table.add_row(Text(name), *values, _signed(change[name]))
    return Group(Text(), table)


def _diff_table(title: str, *columns: str) -> Table:
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _signed(value: int) -> str:
    return f"{'+' if value > 0 else ''}{short_bytes(value)}"
