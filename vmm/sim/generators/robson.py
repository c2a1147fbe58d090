# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The worst case for an allocator that never moves anything, after Robson.

J. M. Robson, "Bounds for some functions concerning dynamic storage allocation", JACM 21 (1974).
Phase i frees all but what blocks chunks of 2^i units, then asks for blocks of that size. The
adversary of the paper sees addresses; this one plays against a first-fit heap of its own, so the
trace is the same for every allocator and only near the worst for others.
"""

from __future__ import annotations

from dataclasses import dataclass

from vmm.sim.generators.parameters import Parameters, setting
from vmm.sim.generators.tape import Tape
from vmm.sim.trace import Trace

KIB = 1 << 10


@dataclass(frozen=True, kw_only=True)
class RobsonParameters(Parameters):
    """A step is a phase."""

    steps: int = setting(10, "phases; the largest block has 2^(phases - 1) units", high=24)
    unit: int = setting(256 * KIB, "smallest block, bytes")
    total: int = setting(4 << 30, "live at most, bytes")


class _FirstFit:
    """Which unit belongs to whom; -1 is nobody."""

    def __init__(self) -> None:
        self.cells: list[int] = []
        self.cursor = 0  # no run that is long enough starts before

    def place(self, id: int, units: int) -> int:
        cells, start = self.cells, self.cursor
        run = 0
        for position in range(start, len(cells)):
            run = run + 1 if cells[position] < 0 else 0
            if run == units:
                start = position + 1 - units
                break
        else:
            start = len(cells) - run
            cells.extend([-1] * (units - run))
        cells[start : start + units] = [id] * units
        self.cursor = start + units
        return start


def generate(p: RobsonParameters) -> Trace:
    """The trace of all phases."""
    tape, heap = Tape("robson", p), _FirstFit()
    total, live, offset = p.total // p.unit, 0, 0
    places: dict[int, tuple[int, int]] = {}  # id -> start and length in units
    for phase in range(p.steps):
        units = 1 << phase
        offset = _offset(places, offset, units)
        for id, (start, length) in list(places.items()):
            if not _blocks(start, length, offset, units):
                del places[id]
                heap.cells[start : start + length] = [-1] * length
                live -= length
                tape.free(id)
        heap.cursor = 0
        while live + units <= total:
            id = tape.alloc(units * p.unit, f"2^{phase}")
            places[id] = (heap.place(id, units), units)
            live += units
        tape.compute(moved=p.total)
        tape.step()
    return tape.trace()


def _blocks(start: int, length: int, offset: int, units: int) -> bool:
    """Whether a block covers a unit that is `offset` within some chunk of `units`."""
    return (offset - start) % units < length


def _offset(places: dict[int, tuple[int, int]], offset: int, units: int) -> int:
    """Of the two continuations of the last offset, the one whose blocks leave more free space."""
    if units == 1:
        return 0

    def wasted(candidate: int) -> int:
        return sum(
            units - length
            for start, length in places.values()
            if _blocks(start, length, candidate, units)
        )

    other = offset + units // 2
    return offset if wasted(offset) >= wasted(other) else other
