# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Made-up recordings of any length: a small allocator with pages, driven by a seeded program."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from vmm.sim.trace import Trace

PAGE = 2 << 20
BASE = 0x7F40_0000_0000
CREATE, MOVE = 0, 2
COLUMNS = (
    *("t_ns", "op", "id", "bytes", "stream", "pool", "tag"),
    *("addr", "aux", "stack", "thread", "requested"),
)
TAGS = ["", "embedding", "attention", "mlp", "optimizer", "gradients", "loss", "all-to-all"]


class _Program:
    """Allocates and frees; each size reuses its own free addresses, pages move between sizes."""

    def __init__(self, seed: int, step: int) -> None:
        self.random = random.Random(seed)
        self.step = step
        self.rows: list[tuple[int, ...]] = []
        self.time = 10**9
        self.ids = self.pages = 0
        self.top = BASE
        self.free: dict[int, list[int]] = {}
        self.spare: list[int] = []  # pages that were taken from free addresses
        self.page_at: dict[int, int] = {}
        self.live: list[tuple[int, int, int, int, int]] = []  # id, address, size, stream, tag

    def row(self, op: str, *values: int) -> None:
        self.time += self.random.randrange(200, 4000)
        self.rows.append((self.time, ord(op), *values))

    def page_row(self, op: str, address: int, page: int, cause: int) -> None:
        self.row(op, -1, PAGE, 0, 0, 0, address, page | cause << 56, 0, 0, 0)

    def alloc(self) -> None:
        choose = self.random
        small = choose.random() < 0.6
        small_size = max(choose.randrange(100, 1 << 20) & ~0xFFF, 64)
        requested = small_size if small else choose.randrange(1, 24) * PAGE - 700
        size = -(-requested // 512) * 512
        addresses = self.free.setdefault(size, [])
        address = addresses.pop() if addresses else self.grow(size)
        tag = choose.randrange(1, len(TAGS))
        stream, stack = int(tag == 7), (tag - 1) * 4 + choose.randrange(4) + 1
        self.row("a", self.ids, size, stream, 0, tag, address, 0, stack, 1, requested)
        self.live.append((self.ids, address, size, stream, tag))
        self.ids += 1

    def grow(self, size: int) -> int:
        address, end = self.top, self.top + size
        for place in range(address // PAGE * PAGE, end, PAGE):
            if place not in self.page_at:
                page, cause = (self.spare.pop(), MOVE) if self.spare else (self.pages, CREATE)
                self.pages += cause == CREATE
                self.page_at[place] = page
                self.page_row("M", place, page, cause)
        self.top = end if size < PAGE else -(-end // PAGE) * PAGE
        return address

    def release(self) -> None:
        place = self.random.randrange(len(self.live))
        self.live[place], self.live[-1] = self.live[-1], self.live[place]
        id, address, size, stream, tag = self.live.pop()
        for op in "fc":
            self.row(op, id, size, stream, 0, tag, address, 0, 0, 1, 0)
        whole = address % PAGE == 0 and size >= PAGE
        if whole and self.random.random() < 0.15:
            # The last page may hold the start of a small block.
            for page_address in range(address, address + size // PAGE * PAGE, PAGE):
                page = self.page_at.pop(page_address)
                self.page_row("U", page_address, page, MOVE)
                self.spare.append(page)
            return
        self.free.setdefault(size, []).append(address)

    def mark(self, number: int) -> None:
        self.row("m", -1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        if number % 3 == 2:
            self.row("w", -1, 0, 1, 0, 0, 0, 0, 0, 0, 0)
        if number % 7 == 5:
            self.row("y", -1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        if number % 11 == 7:
            self.row("o", -1, 3 << 30, 0, 0, 3, 0, 1 << 30, 2, 0, 0)


def synthetic_recording(
    events: int, *, seed: int = 0, live: int = 400, step: int = 2000, **header: Any
) -> Trace:
    """A recording of about `events` events, with pages, stacks, tags, two streams and marks.

    About `live` blocks are live at a time, more towards the middle of each step of `step` events.
    """
    program = _Program(seed, step)
    marks = 0
    while len(program.rows) < events:
        if len(program.rows) // step > marks:
            program.mark(marks)
            marks += 1
        phase = len(program.rows) % step / step
        target = live * (0.4 + 0.6 * (1 - abs(2 * phase - 1)))
        grow = len(program.live) < target * program.random.uniform(0.7, 1.3)
        if grow or not program.live:
            program.alloc()
        else:
            program.release()
    columns = dict(zip(COLUMNS, np.array(program.rows, dtype=np.int64).T, strict=True))
    own = {name: columns.pop(name) for name in COLUMNS[:7]}
    facts = {"source": "synthetic", "page_size": PAGE, "tags": TAGS, "streams": [0, 7]}
    return Trace({**facts, "stacks": _stacks(), **header}, **own, extra=columns).validate()


def _stacks() -> list[list[list[Any]]]:
    """Frames innermost first, some shared between the tags; number 0 is empty."""
    stacks: list[list[list[Any]]] = [[]]
    for tag in TAGS[1:]:
        for variant in range(4):
            inner = [[f"layers/{tag}.py", 10 * variant + 7, f"{tag}_{variant}"]]
            inner += [["model.py", 40 + depth, f"block_{depth}"] for depth in range(variant)]
            stacks.append([*inner, ["train.py", 88, "forward"], ["train.py", 12, "main"]])
    return stacks
