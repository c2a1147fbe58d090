# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which pages are mapped and which blocks lie on them, as torch's snapshots describe memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


class Block(NamedTuple):
    """A live block, or a freed one that somebody may still use."""

    address: int
    size: int
    requested: int
    pool: int
    stream: int
    stack: int
    tag: int


class Arenas:
    """Which arena an address belongs to; what no arena holds belongs to arena 0."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = sorted(rows, key=lambda row: row["base"])
        self._bases = [row["base"] for row in self._rows]

    def row(self, address: int) -> dict[str, Any]:
        """The description of the arena around an address."""
        at = bisect_right(self._bases, address) - 1
        if at >= 0 and address < self._bases[at] + self._rows[at]["reserved"]:
            return self._rows[at]
        return {"arena": 0, "pool": 0, "small": 0}

    def number(self, address: int) -> int:
        """The number of the arena around an address."""
        return int(self.row(address)["arena"])

    def runs(self, pages: dict[int, int]) -> Iterator[tuple[int, int]]:
        """(address, size) of the maximal runs of pages (address -> size) of one arena each."""
        begin = end = arena = -1
        for address in sorted(pages):
            number = self.number(address)
            if address != end or number != arena:
                if begin >= 0:
                    yield begin, end - begin
                begin, arena = address, number
            end = address + pages[address]
        if begin >= 0:
            yield begin, end - begin


@dataclass
class Layout:
    """Pages by address, and blocks by address: those that are live, and those that wait."""

    arenas: Arenas
    pages: dict[int, int]
    live: dict[int, Block]
    pending: dict[int, Block]

    def segments(
        self, device: int, frames: Sequence[list[dict[str, Any]]], pending_name: str
    ) -> list[dict[str, Any]]:
        """The segments of a snapshot: one per run of pages, tiled by its blocks."""
        blocks = sorted(
            [(block, "active_allocated") for block in self.live.values()]
            + [(block, pending_name) for block in self.pending.values()]
        )
        at, result = 0, []
        for begin, size in self.arenas.runs(self.pages):
            while at < len(blocks) and blocks[at][0].address < begin:
                at += 1
            first = at
            while at < len(blocks) and blocks[at][0].address < begin + size:
                at += 1
            result.append(self._segment(device, begin, size, blocks[first:at], frames))
        return result

    def _segment(
        self,
        device: int,
        begin: int,
        size: int,
        blocks: Sequence[tuple[Block, str]],
        frames: Sequence[list[dict[str, Any]]],
    ) -> dict[str, Any]:
        arena = self.arenas.row(begin)
        rows: list[dict[str, Any]] = []
        at = begin
        for block, state in blocks:
            if block.address > at:
                rows.append(_row(at, block.address - at, 0, "inactive", []))
            stack = frames[block.stack] if block.stack < len(frames) else []
            rows.append(_row(block.address, block.size, block.requested, state, stack))
            at = block.address + block.size
        if at < begin + size:
            rows.append(_row(at, begin + size - at, 0, "inactive", []))
        live = [block for block, state in blocks if state == "active_allocated"]
        return {
            "device": device,
            "address": begin,
            "total_size": size,
            "allocated_size": sum(block.size for block in live),
            "active_size": sum(block.size for block, _ in blocks),
            "requested_size": sum(block.requested for block in live),
            # One number per arena, so that readers never merge two of them.
            "stream": int(arena["arena"]),
            "segment_type": "small" if arena["small"] else "large",
            "segment_pool_id": (0, int(arena["pool"])),
            "is_expandable": True,
            "frames": [],
            "blocks": rows,
        }


def _row(
    address: int, size: int, requested: int, state: str, frames: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }
