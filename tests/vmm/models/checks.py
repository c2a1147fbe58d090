# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What every model keeps to, whatever is asked of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from vmm.sim.models.base import OutOfMemory

M = 1 << 20
SIZES = (1, 512, 4096, 300_000, M, M + 1, 3 * M, 9 * M, 10 * M, 21 * M, 70 * M)

# The memory of an allocation as ranges (address, bytes) that no other one may touch.
Ranges = Callable[[Any, int, int], list[tuple[int, int]]]


def by_address(model: Any, id: int, size: int) -> list[tuple[int, int]]:
    """The bytes that were asked for, where the model says that they are."""
    return [(model.address_of(id), max(size, 1))]


def run_randomly(
    model: Any, seed: int, events: int, *, streams: int = 3, ranges: Ranges = by_address
) -> int:
    """Random requests, frees, recorded streams and waits; returns how many ran out of memory.

    After each event: nothing that is live, or waits for another stream, overlaps; what is held
    covers what is live and keeps to the capacity. At the end nothing is live.
    """
    rng = random.Random(seed)
    live: dict[int, int] = {}
    failures = now = 0
    for id in range(events):
        what = rng.random()
        now += rng.randrange(3_000_000)
        model.advance(now)
        if what < 0.5:
            size = rng.choice(SIZES) + rng.randrange(2) * rng.randrange(5000)
            try:
                model.alloc(id, size, rng.randrange(streams), 0)
                live[id] = size
            except OutOfMemory:
                failures += 1
        elif what < 0.85 and live:
            gone = rng.choice(sorted(live))
            model.free(gone)
            del live[gone]
        elif what < 0.92 and live:
            model.record_stream(rng.choice(sorted(live)), rng.randrange(streams))
        elif what < 0.96:
            model.kernel(rng.randrange(streams), rng.randrange(20_000_000))
        else:
            model.sync(rng.randrange(streams))
        assert_consistent(model, live, ranges)
    for id in list(live):
        model.free(id)
    assert model.live == 0
    return failures


def assert_consistent(model: Any, live: dict[int, int], ranges: Ranges = by_address) -> None:
    assert model.reserved >= model.live >= sum(live.values())
    assert model.capacity is None or model.reserved <= model.capacity
    used = sorted(part for id, size in live.items() for part in ranges(model, id, size))
    for (address, size), (following, _) in pairwise(used):
        assert address + size <= following


def assert_tiles(blocks: list[Any]) -> None:
    """Blocks in the order of addresses: neighbors touch and know each other."""
    for block, following in pairwise(blocks):
        assert block.address + block.size <= following.address
        if block.next is not None:
            assert block.next is following
            assert following.previous is block
            assert block.address + block.size == following.address
