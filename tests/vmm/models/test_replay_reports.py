# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Patterns of requests from public reports of fragmentation, with the sizes of the reports."""

from __future__ import annotations

from typing import Any

from vmm.sim.replay import run
from vmm.sim.trace import Trace, from_events

MIB, GIB = 1 << 20, 1 << 30
Row = tuple[Any, ...]


def trace(rows: list[Row]) -> Trace:
    """Events one microsecond apart."""
    return from_events([(1000 * number, *row) for number, row in enumerate(rows)])


def test_survivors_split_a_large_segment() -> None:
    """pytorch#35901: 11.6 GiB in one segment, held by tensors of 16 MiB; the next one fails."""
    rows: list[Row] = [("a", 0, int(11.6 * GIB)), ("f", 0)]
    for number in range(1, 41, 2):
        rows += [("a", number, 256 * MIB), ("a", number + 1, 16 * MIB)]
    rows += [("f", number) for number in range(1, 41, 2)]
    rows += [("m", -1), ("a", 100, 11 * GIB), ("m", -1)]
    made = trace(rows)
    default = run(made, "torch", 16 * GIB)
    # The request for 11 GiB is the 64th event.
    assert (default.ooms, default.first_oom, default.counters["retries"]) == (1, 63, 1)
    expandable = run(made, "torch-expandable", 16 * GIB)
    assert expandable.ooms == 0
    assert (expandable.counters["retries"], expandable.counters["syncs"]) == (1, 1)
    ours = run(made, "vmm", 16 * GIB)
    assert (ours.ooms, ours.counters["syncs"], ours.counters["waits"]) == (0, 0, 0)
    assert ours.measures.live_peak == int(11.6 * GIB) // 512 * 512 + 512


def test_weights_leave_tails_too_small_for_the_next() -> None:
    """vllm#41268: 530 MiB to load, 270 MiB to keep; 260 MiB of each segment stay unused."""
    rows: list[Row] = []
    for number in range(0, 32, 2):
        rows += [("a", number, 530 * MIB), ("f", number), ("a", number + 1, 270 * MIB)]
    made = trace(rows)
    peak = (15 * 270 + 530) * MIB
    default = run(made, "torch")
    assert (default.measures.live_peak, default.measures.reserved_peak) == (peak, 16 * 530 * MIB)
    assert default.measures.f_peak == 1 - (15 * 270 + 530) / (16 * 530)
    # The remedy of the report: the block of 530 MiB is not split, and serves again and again.
    unsplit = run(made, "torch", max_split_size_mb=20)
    assert unsplit.measures.reserved_peak == (530 + 16 * 270) * MIB
    ours = run(made, "vmm")
    assert (ours.measures.live_peak, ours.measures.reserved_peak) == (peak, peak)
    assert ours.counters["syncs"] == 0


def test_a_request_for_all_that_is_free() -> None:
    """sglang#34155: as many bytes are free as are asked for, but not in one piece."""
    blocks = 52
    rows: list[Row] = [("a", number, 78 * MIB) for number in range(blocks)]
    rows += [("f", number) for number in range(1, blocks, 2)]
    rows += [("m", -1), ("a", 100, 26 * 78 * MIB), ("m", -1)]
    made = trace(rows)
    ours = run(made, "vmm", blocks * 78 * MIB)
    assert (ours.ooms, ours.counters["syncs"]) == (0, 0)
    # The last free block grows in place; the pages of the other 25 move.
    assert ours.steals_per_step == [0, 25 * 39]
    assert ours.measures.f_peak == 0
    default = run(made, "torch", blocks * 78 * MIB)
    assert (default.ooms, default.counters["retries"], default.counters["syncs"]) == (0, 1, 1)
