# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The state of a device as text: Paddle's three tables of memory_summary, then pages and losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from vmm.observe.listing import top_tags
from vmm.observe.measures import measure
from vmm.observe.size_ranges import RANGES, histogram
from vmm.observe.state import ACTIVE, FREE_MAPPED, PENDING, PINS, State
from vmm.observe.text import bytes_text, new_table, table_text

if TYPE_CHECKING:
    from rich.table import Table

_USED = (ACTIVE, PENDING)


def summary_text(state: State, most_tags: int = 5) -> str:
    """Six tables: totals, arenas, sizes, pages, fragmentation, the tags that hold the most."""
    return table_text(
        _totals(state),
        _arenas(state),
        _sizes(state),
        _pages(state),
        _fragmentation(state),
        _tags(state, most_tags),
    )


def _totals(state: State) -> Table:
    stats = state.stats
    table = new_table(f"Memory of device {state.device}", "what", "now", "peak")
    for name, text in (
        ("allocated_bytes", "allocated"),
        ("requested_bytes", "requested"),
        ("reserved_bytes", "held"),
    ):
        now, peak = (stats.get(f"{name}.all.{kind}", 0) for kind in ("current", "peak"))
        table.add_row(text, bytes_text(now), bytes_text(peak))
    count = (stats.get(f"allocation.all.{kind}", 0) for kind in ("current", "peak"))
    table.add_row("allocations", *map(str, count))
    table.add_row("limit", bytes_text(stats.get("limit_bytes", 0)), "")
    table.add_row("soft limit", bytes_text(stats.get("soft_limit_bytes", 0)), "")
    for name, text in (
        ("num_ooms", "out of memory"),
        ("num_alloc_retries", "retries"),
        ("waits", "waits"),
        ("syncs", "device syncs"),
        ("steals.move", "pages moved"),
        ("steals.alias", "pages aliased"),
    ):
        table.add_row(text, str(stats.get(name, 0)), "")
    return table


def _arenas(state: State) -> Table:
    columns = ("arena", "used", "bytes", "largest", "free", "bytes", "largest")
    table = new_table("Blocks by arena", *columns)
    names = {row.arena: (row.pool_name, row.small) for row in state.arenas}
    for arena, (pool, small) in sorted(names.items()):
        cells: list[str] = []
        for states in (_USED, (FREE_MAPPED,)):
            sizes = _block_sizes(state, states, arena)
            cells += [str(len(sizes)), bytes_text(sum(sizes)), bytes_text(max(sizes, default=0))]
        table.add_row(f"{arena} {pool} {'small' if small else 'large'}", *cells)
    return table


def _sizes(state: State) -> Table:
    table = new_table("Blocks by size", "size", "used", "bytes", "free", "bytes")
    used, free = (histogram(_block_sizes(state, states)) for states in (_USED, (FREE_MAPPED,)))
    for (_, name), one, other in zip(RANGES, used, free, strict=True):
        table.add_row(name, str(one[0]), bytes_text(one[1]), str(other[0]), bytes_text(other[1]))
    return table


def _pages(state: State) -> Table:
    stats = state.stats
    page = stats.get("page_size", 0)
    table = new_table(f"Pages of {bytes_text(page)}", "what", "number", "bytes")
    rows = [(name, name) for name in ("created", "mapped", "free", "stale", "quarantined")]
    rows += [("pinned", "pinned"), *((f"pinned_{pin}", f"pinned: {pin}") for pin in PINS)]
    for name, text in rows:
        count = stats.get(f"pages.{name}", 0)
        table.add_row(text, str(count), bytes_text(count * page))
    table.add_row("could move", "", bytes_text(stats.get("stealable_bytes", 0)))
    return table


def _fragmentation(state: State) -> Table:
    table = new_table("Fragmentation", "measure", "share")
    measures = measure(state)
    for field in fields(measures):
        table.add_row(field.name.replace("_", " "), f"{getattr(measures, field.name):.2%}")
    return table


def _tags(state: State, most: int) -> Table:
    table = new_table("Live bytes by tag", "tag", "bytes", "blocks")
    for tag, size, count in top_tags(state, most):
        table.add_row(tag or "(none)", bytes_text(size), str(count))
    return table


def _block_sizes(state: State, states: Sequence[str], arena: int | None = None) -> list[int]:
    return [
        row.size
        for row in state.blocks
        if row.state in states and (arena is None or row.arena == arena)
    ]
