# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What one call costs: seconds, processor time, memory, bytes read from files, bytes sent."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Cost(NamedTuple):
    """What a call costs one process.

    Attributes:
        seconds: from start to end.
        cpu: seconds of processor time.
        peak: bytes that the highest resident set lies above the one before the call.
        read: bytes that went through read calls on files; what is mapped is not seen.
        sent: bytes that crossed the loopback device meanwhile, by whichever process.
    """

    seconds: float
    cpu: float
    peak: int
    read: int
    sent: int


class Contender(NamedTuple):
    """One way to answer a question: what is timed, and what must happen before, untimed."""

    call: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None


def nothing() -> None:
    """For who has nobody to wait for."""


def measured(contender: Contender, barrier: Callable[[], Any] = nothing) -> Cost:
    """The cost of one call. ``barrier`` lines the ranks up before and after it."""
    contender.prepare()
    release_memory()
    barrier()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again from here
    memory, read, sent = status_bytes("VmRSS"), bytes_read(), bytes_sent()
    begin, cpu = time.perf_counter(), time.process_time()
    contender.call()
    cpu = time.process_time() - cpu
    barrier()
    seconds = time.perf_counter() - begin
    peak = status_bytes("VmHWM") - memory
    return Cost(seconds, cpu, max(peak, 0), bytes_read() - read, bytes_sent() - sent)


def release_memory() -> None:
    """Gives free memory back to the system, so that one call does not pay for another's."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def bytes_read() -> int:
    """What this process read from files so far. Sockets of gloo are read by other calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar:")).split()[1])


def bytes_sent() -> int:
    """What the loopback device of the machine sent so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return int(next(line for line in lines if line.strip().startswith("lo:")).split()[9])


def together(costs: Sequence[Cost]) -> Cost:
    """The cost of a call of several ranks: the slowest one's seconds, the sum of bytes."""
    return Cost(
        max(cost.seconds for cost in costs),
        sum(cost.cpu for cost in costs),
        sum(cost.peak for cost in costs),
        sum(cost.read for cost in costs),
        max(cost.sent for cost in costs),
    )


def medians(costs: Sequence[Cost]) -> dict[str, Any]:
    """Rounds of one contender as a row of a result."""
    seconds = [cost.seconds for cost in costs]
    return {
        "seconds": round(statistics.median(seconds), 4),
        "seconds_min": round(min(seconds), 4),
        "seconds_max": round(max(seconds), 4),
        "cpu_seconds": round(statistics.median(cost.cpu for cost in costs), 4),
        "peak_rss_mib": round(statistics.median(cost.peak for cost in costs) / 2**20, 1),
        "read_mib": round(statistics.median(cost.read for cost in costs) / 2**20, 2),
        "sent_mib": round(statistics.median(cost.sent for cost in costs) / 2**20, 2),
    }


def ratios(rows: dict[str, dict[str, Any]], ours: str, peers: Sequence[str]) -> dict[str, float]:
    """How many times longer each peer takes."""
    return {
        f"{ours}_vs_{peer}": round(rows[peer]["seconds"] / rows[ours]["seconds"], 2)
        for peer in peers
        if peer in rows and ours in rows
    }
