# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A script of 200 operations with each call of the driver failing in turn, once."""

from __future__ import annotations

import functools

import pytest

from benchmarks.vmm.soaking.player import Player
from vmm.allocator import Allocator

KIB, MIB = 1 << 10, 1 << 20
OPERATIONS = 200
SEED = 9
PAGE = 64 * KIB

# Call of the driver -> the error that it gives, and the counter that its calls are in.
CALLS = {
    "reserve": ("oom", "reserve"),
    "create": ("invalid", "create"),
    "release": ("invalid", "release"),
    "map": ("invalid", "map"),
    "unmap": ("perm", "unmap"),
    "set_access": ("perm", "access"),
    "event_create": ("oom", "event"),
    "event_record": ("invalid", "event"),
    "event_query": ("invalid", "event"),
    "stream_wait": ("invalid", "wait"),
    "device_sync": ("invalid", "sync"),
}
AT_MOST = 8  # runs for a kind of call, spread over all calls of the script


def played(fail: str = "") -> tuple[Player, dict[str, int]]:
    """Plays the script and frees everything. The player, and the statistics before it ended."""
    with Allocator(
        driver="host",
        granularity=PAGE,
        page=PAGE,
        small_max=16 * KIB,
        grow=4 * PAGE,
        limit=3 * MIB,
        device_bytes=6 * MIB,
        checking=True,
        check=2,
        **({"fail": fail} if fail else {}),
    ) as allocator:
        player = Player(allocator, page=PAGE, limit=3 * MIB, seed=SEED, tolerant=bool(fail))
        for _ in range(OPERATIONS):
            player.step()
        stats = allocator.stats()
        player.finish()
    return player, stats


@functools.cache
def calls_made() -> dict[str, int]:
    """Counter -> calls of a run in which nothing fails."""
    _, stats = played()
    return {counter: stats[f"driver.{counter}.calls"] for _, counter in CALLS.values()}


@pytest.mark.parametrize("call", CALLS)
def test_each_call_fails_in_turn(call: str) -> None:
    """The player checks tables, contents, sums and streams after each call; see there."""
    error, counter = CALLS[call]
    made = calls_made()[counter]
    assert made > 0
    for number in sorted({1 + made * run // AT_MOST for run in range(AT_MOST)}):
        player, _ = played(f"{call}@{number}:{error}")
        assert player.count.total() >= OPERATIONS
