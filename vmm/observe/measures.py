# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How much memory is lost, and to what, at one moment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from vmm.observe.state import ACTIVE, FREE_MAPPED, PENDING, State


@dataclass(frozen=True)
class Fragmentation:
    """Shares from 0 to 1 of the state of a device; 0 where there is nothing to divide by.

    Attributes:
        rounding: 1 - requested / allocated: lost inside blocks.
        pinned_down: 1 - allocated / bytes of the pages under live and pending blocks: what moving
            pages cannot remove.
        scattered: 1 - largest placeable / free, where free is what is held and not allocated, and
            placeable counts free pages as one run, for they can be mapped anywhere.
        unmoved: the same, if pages could not move: only the largest run of free mapped bytes
            counts.
        held: 1 - allocated / held: all of it together.
        peak: 1 - highest allocated / highest held, since the peaks were reset.
        paddle_rate: (held - highest allocated) / held, "Max Frag Rate" of Paddle 3.3.
        mass: 1 - largest free block / all free mapped bytes (Paddle #76554).
        hole: free mapped blocks / mapped blocks (Paddle #76554).
        composite: mass + (1 - mass) * hole (Paddle #76554).
    """

    rounding: float
    pinned_down: float
    scattered: float
    unmoved: float
    held: float
    peak: float
    paddle_rate: float
    mass: float
    hole: float
    composite: float


def measure(state: State) -> Fragmentation:
    """The measures of a state, from its blocks and statistics."""
    stats = state.stats
    allocated = stats.get("allocated_bytes.all.current", 0)
    highest = stats.get("allocated_bytes.all.peak", 0)
    held = stats.get("reserved_bytes.all.current", 0)
    free = [block.size for block in state.blocks if block.state == FREE_MAPPED]
    used = sum(block.state in (ACTIVE, PENDING) for block in state.blocks)
    run = max((size for _, size in free_runs(state)), default=0)
    movable = stats.get("stealable_bytes", 0) + stats.get("pool_free_bytes", 0)
    rest = held - allocated
    mass = _lost(max(free, default=0), sum(free))
    hole = len(free) / (len(free) + used) if free else 0.0
    return Fragmentation(
        rounding=_lost(stats.get("requested_bytes.all.current", 0), allocated),
        pinned_down=_lost(allocated, covered_bytes(state)),
        scattered=_lost(max(run, movable), rest),
        unmoved=_lost(run, rest),
        held=_lost(allocated, held),
        peak=_lost(highest, stats.get("reserved_bytes.all.peak", 0)),
        paddle_rate=max(held - highest, 0) / held if held else 0.0,
        mass=mass,
        hole=hole,
        composite=mass + (1 - mass) * hole,
    )


def free_runs(state: State) -> Iterator[tuple[int, int]]:
    """(address, size) of the maximal runs of free mapped blocks of one arena."""
    begin = end = arena = -1
    for block in state.blocks:
        if block.state != FREE_MAPPED:
            continue
        if block.address != end or block.arena != arena:
            if begin >= 0:
                yield begin, end - begin
            begin, arena = block.address, block.arena
        end = block.address + block.size
    if begin >= 0:
        yield begin, end - begin


def covered_bytes(state: State) -> int:
    """Bytes of the pages that live and pending blocks lie on; sleeping ones have none."""
    page = state.stats.get("page_size", 0) or min((a.page_size for a in state.arenas), default=0)
    if page == 0:
        return 0
    total, last = 0, -1
    for block in state.blocks:
        if block.state not in (ACTIVE, PENDING) or block.asleep:
            continue
        first = max(block.address // page, last + 1)
        last = max(last, (block.address + block.size - 1) // page)
        total += max(last - first + 1, 0)
    return total * page


def _lost(part: int, whole: int) -> float:
    return max(1 - part / whole, 0.0) if whole > 0 else 0.0
