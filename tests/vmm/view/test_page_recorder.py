# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the page makes of a recording, beside what the allocator says of itself."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import Any

import pytest

from vmm.errors import OutOfMemory
from vmm.view.free_runs import free_runs
from vmm.view.from_trace import from_trace

M = 1 << 20
LIVE, FREE = ("active", "pending"), "free"


class Program:
    """Allocates and frees at random on two streams."""

    def __init__(self, allocator: Any) -> None:
        self.allocator, self.random = allocator, random.Random(7)
        self.live: list[int] = []

    def run(self, requests: int) -> None:
        for _ in range(requests):
            sizes = (self.random.randrange(1, M // 2), self.random.randrange(M, 40 * M))
            if self.random.random() < 0.55 and len(self.live) < 50:
                stream, tag = self.random.choice([0, 0, 5]), self.random.choice(["weight", "loss"])
                size = self.random.choice(sizes)
                try:
                    self.live.append(self.allocator.alloc(size, stream=stream, tag=tag))
                except OutOfMemory:
                    self.free()
            elif self.live:
                self.free()

    def free(self) -> None:
        place = self.random.randrange(len(self.live))
        self.allocator.free(self.live.pop(place))


def test_the_end_of_the_recording_is_the_state_of_the_allocator(show: Any) -> None:
    native = pytest.importorskip("vmm.native")
    if not native.library_path().exists():
        pytest.skip("the core library was not built")
    from vmm.allocator import Allocator
    from vmm.observe.api import record

    allocator = Allocator(driver="null", devices=1, device_bytes=1 << 31, limit=1 << 30)
    program = Program(allocator)
    program.run(200)
    pinned = program.live[0]
    allocator.pin(pinned, 1, "graph")
    with record(1 << 16, stacks="python", allocator=allocator) as recorder:
        program.live.remove(pinned)  # it stays
        program.run(1500)
        allocator.compact()
        program.run(300)
    recording = from_trace(recorder.recording.trace, "recorded")
    stats = allocator.stats()
    blocks = [block for block in allocator.blocks() if block.state in LIVE]
    last = len(recording) - 1

    opened = show(recording)
    opened.open("map")
    opened.cursor(last)
    assert opened.value("#cursor-live") == stats["allocated_bytes.all.current"]
    assert opened.value("#cursor-held") == stats["reserved_bytes.all.current"]
    assert opened.value("#map-blocks") == len(blocks)
    assert opened.value("#map-pages") == stats["pages.created"]
    assert opened.value("#steals") > 0

    page = next(slot.page for slot in allocator.slots() if any(_values(slot.pins)))
    opened.page.evaluate(f"vmmView.store.selectedPage = {page}")
    opened.cursor(last)
    assert re.search(r"graph \S 1\b", opened.text("#view-map .details"))

    runs: list[int] = []
    rows = allocator.blocks()
    for before, block in pairwise([None, *rows]):
        if block.state != FREE:
            continue
        joined = before is not None and before.state == FREE
        if joined and before.address + before.size == block.address:
            runs[-1] += block.size
        else:
            runs.append(block.size)
    assert free_runs(recording, last).tolist() == runs
    opened.open("runs")
    assert opened.value("#runs-count") == len(runs)
    opened.check_quiet()
    allocator.close()


def _values(pins: Any) -> list[int]:
    return list(pins.values() if isinstance(pins, dict) else pins)
