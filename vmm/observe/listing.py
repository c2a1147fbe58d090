# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Lists of what is in memory: blocks, pages, and who holds the most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vmm.observe.stacks import STACKS, Frame
from vmm.observe.state import ACTIVE, STATES, State


class BlockEntry(NamedTuple):
    """A block: sizes in bytes, `state` active, pending, free (pages behind it) or unmapped;
    `stack` has (file, line, function), innermost first, if one was recorded."""

    address: int
    size: int
    requested: int
    state: str
    stream: int
    arena: int
    pool: int
    tag: str
    stack: tuple[Frame, ...]


class PageEntry(NamedTuple):
    """A virtual page: `state` mapped, stale (an old mapping that is still there) or empty; `page`
    is the physical one or -1; `live` counts the live bytes on it; `pins` has those that are set."""

    address: int
    page: int
    state: str
    arena: int
    live: int
    pins: dict[str, int]


class TagEntry(NamedTuple):
    """What allocations with one tag hold: bytes of live blocks, and the number of them."""

    tag: str
    bytes: int
    blocks: int


def block_entries(state: State, states: Sequence[str] = STATES) -> list[BlockEntry]:
    """The blocks of a state that are in one of `states`, in address order."""
    table = STACKS.table
    return [
        BlockEntry(
            row.address,
            row.size,
            row.requested,
            row.state,
            row.stream,
            row.arena,
            row.pool,
            row.tag,
            table[row.stack] if row.stack < len(table) else (),
        )
        for row in state.blocks
        if row.state in states
    ]


def page_entries(state: State) -> list[PageEntry]:
    """The virtual pages of a state in address order."""
    sizes = {row.arena: row.page_size for row in state.arenas}
    live = _live_by_page(state, sizes)
    return [
        PageEntry(
            row.address,
            row.page,
            "empty" if row.page < 0 else "stale" if row.stale else "mapped",
            row.arena,
            live.get(row.address, 0),
            {reason: count for reason, count in row.pins.items() if count},
        )
        for row in state.slots
    ]


def _live_by_page(state: State, sizes: dict[int, int]) -> dict[int, int]:
    live: dict[int, int] = {}
    for row in state.blocks:
        if row.state != ACTIVE:
            continue
        page, end = sizes[row.arena], row.address + row.size
        for address in range(row.address // page * page, end, page):
            part = min(end, address + page) - max(row.address, address)
            live[address] = live.get(address, 0) + part
    return live


def top_tags(state: State, most: int) -> list[TagEntry]:
    """The `most` tags with the largest live bytes, the largest first."""
    held: dict[str, list[int]] = {}
    for row in state.blocks:
        if row.state == ACTIVE:
            entry = held.setdefault(row.tag, [0, 0])
            entry[0] += row.size
            entry[1] += 1
    ranked = sorted(held.items(), key=lambda item: (-item[1][0], item[0]))
    return [TagEntry(tag, size, count) for tag, (size, count) in ranked[:most]]
