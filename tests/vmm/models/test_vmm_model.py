# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Our allocator in a replay, against the same calls one by one."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vmm.allocator import Allocator
from vmm.errors import OutOfMemory
from vmm.sim.capacity import peak, smallest
from vmm.sim.models.vmm import VmmModel, replay_events
from vmm.sim.readers import read_any
from vmm.sim.replay import run
from vmm.sim.trace import Trace, from_events

MIB = 1 << 20
MS = 1_000_000
GROWTH = 20 * MIB  # what the allocator creates at once


def random_trace(seed: int) -> Trace:
    chance = random.Random(seed)
    rows: list[tuple[Any, ...]] = []
    live: list[int] = []
    for number in range(600):
        t_ns = number * MS
        if live and chance.random() < 0.47:
            rows.append((t_ns, "f", live.pop(chance.randrange(len(live)))))
        else:
            size = chance.choice([700, 90_000, 3 * MIB, 11 * MIB]) + chance.randrange(5000)
            rows.append((t_ns, "a", 10 * number, size, chance.randrange(3)))
            live.append(10 * number)
            if chance.random() < 0.2:
                rows.append((t_ns, "r", live[-1], 0, chance.randrange(3)))
        if number % 100 == 99:
            rows.append((t_ns, "m", -1))
    return from_events(rows)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [None, 1.02])
def test_a_native_run_is_what_its_calls_one_by_one_are(seed: int, share: float | None) -> None:
    trace = random_trace(seed)
    capacity = None if share is None else int(trace.live(512).max() * share)
    found = VmmModel(capacity).replay_trace(trace, 5 * MS)
    config: dict[str, Any] = {"driver": "null", "device_bytes": "4GiB", "lag_ns": 5 * MS}
    if capacity is not None:
        config["limit"] = capacity
    held, steals = [], [0]
    places: dict[int, int] = {}
    refused: list[int] = []
    with Allocator(config) as allocator:
        for t_ns, op, id, size, stream in zip(
            trace.t_ns, trace.op, trace.id, trace.bytes, trace.stream, strict=True
        ):
            allocator.clock_set(int(t_ns))
            if chr(op) == "m":
                allocator.mark_step()
            elif chr(op) == "a":
                try:
                    places[id] = allocator.alloc(int(size), stream=int(stream))
                except OutOfMemory:
                    refused.append(len(held))
            elif id in places and chr(op) == "f":
                allocator.free(places[id])
            elif id in places:
                allocator.record_stream(places[id], int(stream))
            stats = allocator.stats()
            held.append(stats["reserved_bytes.all.current"])
            if chr(op) == "m":
                steals.append(stats["steals.move"] + stats["steals.alias"])
    assert np.flatnonzero(found.failed).tolist() == refused
    assert found.reserved_peak == max(held)
    assert found.steals_per_step == np.diff(steals).tolist()
    assert sum(found.steals_per_step) > 0
    assert found.counters["waits"] == stats["waits"]
    # Pages that were created ahead of need are seen when they are first used.
    ahead = np.array(held) - found.reserved
    assert 0 <= ahead.min() <= ahead.max() <= GROWTH


def test_a_page_moves_into_the_second_step() -> None:
    # Four blocks of a page each; the second and the last go, and a request of two pages comes.
    rows = [(0, "a", number, 2 * MIB) for number in range(4)]
    rows += [(1, "f", 1), (1, "f", 3), (2, "m", -1), (3, "a", 4, 4 * MIB), (4, "m", -1)]
    found = run(from_events(rows), "vmm", 8 * MIB)
    assert (found.ooms, found.measures.reserved_peak) == (0, 8 * MIB)
    assert found.steals_per_step == [0, 1]
    assert (found.counters["device_alloc"], found.counters["syncs"]) == (4, 0)


def test_without_a_capacity_pages_move_before_much_is_created() -> None:
    rows: list[tuple[Any, ...]] = [(0, "a", number, 2 * MIB) for number in range(512)]
    rows += [(1, "f", number) for number in range(0, 512, 2)]
    rows += [(2, "m", -1), (3, "a", 1000, 512 * MIB)]
    free = run(from_events(rows), "vmm")
    assert free.measures.f_peak <= 0.01
    # A limit may be used in full, so there is room for half of it without a move.
    limited = run(from_events(rows), "vmm", 1536 * MIB)
    assert limited.counters["steals"] == 0
    assert limited.measures.reserved_peak == 1536 * MIB


def test_private_pools_share_nothing() -> None:
    rows = [(0, "a", 0, 20 * MIB, 0, 3), (1, "f", 0), (2, "a", 1, 20 * MIB, 0, 7)]
    found = run(from_events(rows), "vmm")
    assert (found.ooms, found.measures.reserved_peak) == (0, 40 * MIB)
    same = run(from_events([*rows[:2], (2, "a", 1, 20 * MIB, 0, 3)]), "vmm")
    assert same.measures.reserved_peak == 20 * MIB


def test_what_a_replay_does_not_know_is_left_out() -> None:
    rows = [(0, "a", 5, 512), (1, "c", 5), (2, "w", -1), (3, "a", 10**15, 512), (4, "f", 10**15)]
    events, ids = replay_events(from_events(rows))
    assert (len(events), ids) == (3, 2)
    assert events["id"].tolist() == [0, 1, 1]
    assert bytes(events["op"]) == b"aaf"
    found = run(from_events(rows), "vmm")
    assert (found.events, found.ooms, len(found.measures.curve["live"])) == (5, 0, 5)


def test_options_reach_the_allocator() -> None:
    rows = [(0, "a", 0, 2 * MIB), (1, "m", -1)]
    assert run(from_events(rows), "vmm", page=8 * MIB).measures.reserved_peak == 8 * MIB


@pytest.mark.skipif("VMM_TRACES" not in os.environ, reason="VMM_TRACES names no folder")
def test_recorded_training_wastes_little() -> None:
    files = sorted(Path(os.environ["VMM_TRACES"]).iterdir())
    assert files
    for path in files:
        trace = read_any(path)
        assert run(trace, "vmm").measures.f_peak <= 0.01, path.name
        assert smallest(trace, "vmm").overhead <= 0.01, path.name
        tight = run(trace, "vmm", int(peak(trace) * 1.03))
        assert (tight.ooms, tight.counters["syncs"]) == (0, 0), path.name
