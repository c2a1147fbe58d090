# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the viewer shows: events, and tables of the blocks and of the mapped pages they speak of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]

# Columns of the tables. A birth of -1 is before the first event; an end of n, after the last.
BLOCK_COLUMNS = (
    "birth",  # event of the alloc
    "death",  # event of the free
    "done",  # event that gives the address back; after `death` while other streams use the block
    "size",  # bytes taken
    "requested",  # bytes asked for
    "addr",
    "stream",
    "pool",
    "tag",
    "stack",
    "thread",
)
MAP_COLUMNS = (
    "birth",
    "death",
    "addr",
    "bytes",
    "page",  # number of the physical page, -1 if the file does not say
    "cause",
    "end_cause",
    "held",  # change of the physical bytes at birth and at death
    "released",
    "joins",  # 1: free memory may run on from the range before it
)
OTHER_COLUMNS = ("bytes", "aux", "stream", "tag")

CAUSES = ("create", "pool", "move", "alias", "sleep")
CREATE, POOL, MOVE, ALIAS, SLEEP = range(len(CAUSES))


@dataclass(eq=False)
class Recording:
    """Events in order, with the row that each one is about.

    ``t_ns``, ``op`` and ``ref`` have n entries. ``op`` is the code of a letter of
    `vmm.sim.trace.OPS`; ``ref`` is a row of ``blocks`` (ops a f c r), of ``maps`` (M U) or of
    ``others``, or -1. ``held_before`` is the physical memory, in bytes, before the first event.
    ``first_event`` is the number that event ``start_events`` had in the file: what stood at the
    start of a chosen range comes as events in front of it.
    """

    name: str
    kind: str  # recording, snapshot or trace
    t_ns: Column
    op: NDArray[np.uint8]
    ref: Column
    blocks: dict[str, Column]
    maps: dict[str, Column]
    others: dict[str, Column]
    header: dict[str, Any] = field(default_factory=dict)
    page_size: int = 0
    held_before: int = 0
    first_event: int = 0
    start_events: int = 0
    file_events: int = 0
    timed: bool = True  # whether ``t_ns`` are times
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.op)

    @property
    def has_addresses(self) -> bool:
        """Whether the blocks have places, so that maps and free runs can be shown."""
        return bool(np.any(self.blocks["addr"] > 0))

    @property
    def has_ranges(self) -> bool:
        """Whether the file says which addresses had memory behind them."""
        return len(self.maps["birth"]) > 0

    @property
    def has_pages(self) -> bool:
        """Whether the file names the physical pages."""
        return bool(np.any(self.maps["page"] >= 0))

    @property
    def tags(self) -> list[str]:
        return _texts(self.header.get("tags"))

    @property
    def streams(self) -> list[str]:
        return _texts(self.header.get("streams"))

    @property
    def stacks(self) -> list[list[tuple[str, int, str]]]:
        """Frames (file, line, function) per stack, innermost first; number 0 is empty."""
        stacks = self.header.get("stacks")
        return [_frames(stack) for stack in stacks] if isinstance(stacks, list) else []


def empty(columns: tuple[str, ...]) -> dict[str, Column]:
    """A table without rows."""
    return {name: np.zeros(0, dtype=np.int64) for name in columns}


def _texts(value: Any) -> list[str]:
    return [str(text) for text in value] if isinstance(value, list) else []


def _frames(stack: Any) -> list[tuple[str, int, str]]:
    frames = []
    for frame in stack if isinstance(stack, list | tuple) else ():
        if isinstance(frame, list | tuple) and len(frame) == 3:
            file, line, function = frame
            frames.append((str(file), line if isinstance(line, int) else 0, str(function)))
        else:
            frames.append(("", 0, str(frame)))
    return frames
