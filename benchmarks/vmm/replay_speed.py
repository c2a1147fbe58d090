# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Events per second of the native replay: `python -m benchmarks.vmm.replay_speed`.

The allocator as it is by default, over the null driver, nothing recorded. Rounds are interleaved,
and medians over them are reported.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

TARGET = 2_000_000  # events per second


def measure(rounds: int, folder: str | None) -> dict[str, Any]:
    """Trace -> events, and the median of events per second."""
    from vmm.allocator import Allocator
    from vmm.sim import suite
    from vmm.sim.models.vmm import replay_events
    from vmm.sim.readers import read_any

    named = dict(suite.traces())
    for path in sorted(Path(folder).iterdir()) if folder else []:
        named[path.name.split(".")[0]] = read_any(path)
    made = {name: replay_events(trace) for name, trace in named.items()}
    rates: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(rounds):
        for name, (events, ids) in made.items():
            config = {"driver": "null", "device_bytes": "256GiB", "lag_ns": 5_000_000}
            with Allocator(config) as allocator:
                result = allocator.replay(events, ids)
            rates[name].append(len(events) / result.elapsed_ns * 1e9)
    return {
        name: {
            "events": len(made[name][0]),
            "events_per_second": round(statistics.median(rate)),
            "least": round(min(rate)),
            "most": round(max(rate)),
        }
        for name, rate in rates.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--traces", metavar="DIR", help="a folder of recorded traces, too")
    parser.add_argument("--json", help="write the figures into this file")
    arguments = parser.parse_args()
    from benchmarks import timing

    found = measure(arguments.rounds, arguments.traces)
    for name, row in found.items():
        rate = row["events_per_second"]
        word = "met" if rate >= TARGET else "MISSED"
        print(f"{name:<28}{row['events']:>8} events  {rate / 1e6:6.2f} M/s  {word}")
    if arguments.json:
        head = {"environment": timing.environment(), "target": TARGET, "rounds": arguments.rounds}
        timing.write(arguments.json, {**head, "results": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
