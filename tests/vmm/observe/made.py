# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Events and states made by hand."""

from typing import Any

import numpy as np

from vmm.allocator import Arena, Block, Slot
from vmm.observe.events import EVENT, Events
from vmm.observe.state import State

PAGE = 2 << 20
BASE = 0x100000000000  # of arena 0; arena 1 follows it without a gap
LARGE = BASE + 16 * PAGE


def events(*rows: dict[str, int]) -> Events:
    made = np.zeros(len(rows), dtype=EVENT)
    for at, row in enumerate(rows):
        made[at]["t_ns"] = 1000 * (at + 1)
        for name, value in row.items():
            made[at][name] = value
    return made


def alloc(address: int, size: int, requested: int = 0, **more: int) -> dict[str, int]:
    return {"action": 1, "address": address, "size": size, "aux": requested or size, **more}


def free(address: int, size: int, **more: int) -> dict[str, int]:
    return {"action": 2, "address": address, "size": size, **more}


def done(address: int, size: int, **more: int) -> dict[str, int]:
    return {"action": 3, "address": address, "size": size, **more}


def mapped(address: int, page: int, cause: int = 1, **more: int) -> dict[str, int]:
    return {"action": 4, "address": address, "size": PAGE, "aux": page | cause << 56, **more}


def unmapped(address: int, page: int, cause: int = 1, **more: int) -> dict[str, int]:
    return {"action": 5, "address": address, "size": PAGE, "aux": page | cause << 56, **more}


def block(address: int, size: int, state: str = "active", **more: Any) -> Block:
    row: dict[str, Any] = {
        "address": address,
        "size": size,
        "requested": size if state == "active" else 0,
        "stream": 0,
        "arena": int(address >= LARGE),
        "pool": 0,
        "tag": "",
        "stack": 0,
        "state": state,
        "asleep": False,
        "fence": 0,
    }
    return Block(**{**row, **more})


def slot(address: int, page: int, stale: bool = False, **pins: int) -> Slot:
    every = dict.fromkeys(("ipc", "registered", "graph", "user"), 0)
    return Slot(address, page, int(address >= LARGE), stale, {**every, **pins})


ARENAS = [
    Arena(BASE, 16 * PAGE, 0, PAGE, 0, 0, True, False, "default"),
    Arena(LARGE, 64 * PAGE, 0, PAGE, 1, 0, False, False, "default"),
]


def state(blocks: list[Block], slots: list[Slot], **stats: int) -> State:
    return State(0, blocks, slots, ARENAS, {"page_size": PAGE, **stats})
