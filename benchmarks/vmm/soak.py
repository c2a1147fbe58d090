# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random operations under every failure of the driver: `python -m benchmarks.vmm.soak`.

Each round takes the next failure mode and a new seed, plays some hundred operations on the host
driver and ends by freeing everything. Checked are all tables after every call, numbers in the
memory of live blocks, sums of pages and bytes, streams (nobody gets memory on which work may still
run), and that memory can be had again after the failures. Rounds with threads run in between.
A violation prints the seed, the mode and the last operations; `--seed` and `--mode` repeat it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from benchmarks.vmm.soaking.failures import LOST, MODES
from benchmarks.vmm.soaking.player import Player
from benchmarks.vmm.soaking.streams import ViolationError
from benchmarks.vmm.soaking.threads import play_threads

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Sizes:
    page: int
    small_max: int
    limit: int


# Small pages make much happen in few operations; the real size is played as well.
SIZES = (Sizes(64 * KIB, 16 * KIB, 4 * MIB), Sizes(2 * MIB, 256 * KIB, 64 * MIB))
POLICIES = (
    {},
    {"policy": "steal_first"},
    {"alias": 0},
    {"cross_stream": "never"},
    {"cross_stream": "wait"},
    {"align_large": "128KiB", "split_min": 1024},
)


def settings(mode: str, seed: int) -> tuple[dict[str, Any], Sizes]:
    """The configuration of a round. Seeds walk through sizes and policies."""
    sizes = SIZES[seed % 5 == 4]
    fail = MODES[mode].format(seed=seed)
    config = {
        "driver": "host",
        "granularity": sizes.page,
        "page": sizes.page,
        "small_max": sizes.small_max,
        "grow": 4 * sizes.page,
        "limit": sizes.limit,
        "device_bytes": 2 * sizes.limit,
        "checking": 1,
        "check": 2,
        **POLICIES[seed % len(POLICIES)],
        **({"fail": fail} if fail else {}),
    }
    return config, sizes


def play(mode: str, seed: int, operations: int) -> tuple[Player, str]:
    """One round. The player, and what was violated ("": nothing)."""
    from vmm.allocator import Allocator

    config, sizes = settings(mode, seed)
    with Allocator(config) as allocator:
        player = Player(
            allocator, page=sizes.page, limit=sizes.limit, seed=seed, tolerant=bool(MODES[mode])
        )
        try:
            for _ in range(operations):
                player.step()
            player.finish(may_fail=mode == LOST)
        except ViolationError as violation:
            return player, str(violation)
    return player, ""


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--operations", type=int, default=600, help="in a round")
    parser.add_argument("--seed", type=int, default=1, help="of the first round")
    parser.add_argument("--mode", choices=list(MODES), help="only this failure mode")
    parser.add_argument("--json", help="write the counts into this file")
    arguments = parser.parse_args(words)

    end = time.monotonic() + 60 * arguments.minutes
    modes = [arguments.mode] if arguments.mode else list(MODES)
    operations: Counter[str] = Counter()
    errors: Counter[str] = Counter()
    rounds, checked, violations = 0, 0, []
    while rounds == 0 or time.monotonic() < end:
        mode, seed = modes[rounds % len(modes)], arguments.seed + rounds
        player, violated = play(mode, seed, arguments.operations)
        operations += player.count
        errors += player.errors
        checked += player.streams.checked
        rounds += 1
        if violated:
            violations.append({"mode": mode, "seed": seed, "what": violated})
            print(f"mode {mode!r}, seed {seed}: {violated}", file=sys.stderr)
            print("\n".join(f"    {line}" for line in player.log[-20:]), file=sys.stderr)
        if rounds % len(modes) == 0:
            what = play_threads(seed)
            if what:
                violations.append({"mode": "threads", "seed": seed, "what": what})
                print(f"threads, seed {seed}: {what}", file=sys.stderr)

    from benchmarks import timing

    result = {
        "rounds": rounds,
        "operations": operations.total(),
        "placements_checked_against_streams": checked,
        "by_operation": dict(operations.most_common()),
        "errors": dict(errors.most_common()),
        "violations": violations,
    }
    timing.write(arguments.json, result)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
