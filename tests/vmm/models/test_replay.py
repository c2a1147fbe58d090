# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Replays of traces whose outcome is known."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vmm.models.known_model import NAME, KnownModel
from vmm.errors import Invalid
from vmm.sim.models import registry
from vmm.sim.replay import run
from vmm.sim.trace import Trace, from_events

MIB = 1 << 20
MS = 1_000_000


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.MODELS, "known", NAME)


REFUSED = from_events(
    [
        (0, "a", 0, 1024),
        (1, "a", 1, 10_240),  # too large
        (1, "r", 1, 0, 5),
        (2, "m", -1),
        (3, "f", 1),
        (4, "a", 2, 2048),
        (5, "a", 3, 512),
        (6, "m", -1),
        (7, "f", 0),
    ]
)


@pytest.mark.usefixtures("known")
def test_a_refusal_is_not_the_end() -> None:
    found = run(REFUSED, "known", 4096)
    assert (found.ooms, found.first_oom, found.completed) == (1, 1, False)
    assert (found.events, found.measures.live_peak) == (9, 1024 + 2048 + 512)
    assert found.steals_per_step == [1, 2]
    assert KnownModel.last.calls == [
        ("time", 0),
        ("alloc", 0),
        ("time", 1),
        ("alloc", 1),
        ("time", 2),
        ("step",),
        ("time", 4),
        ("alloc", 2),
        ("time", 5),
        ("alloc", 3),
        ("time", 6),
        ("step",),
        ("time", 7),
        ("free", 0),
    ]


@pytest.mark.usefixtures("known")
def test_only_frees_and_uses_belong_to_what_was_refused() -> None:
    rows = [(0, "a", 0, 9999), (0, "k", 0, 5, 7), (0, "s", 0, 0, 7), (0, "m", 0), (0, "f", 0)]
    assert run(from_events(rows), "known", 512).ooms == 1
    calls = [("time", 0), ("alloc", 0), ("kernel", 7, 5), ("sync", 7), ("step",)]
    assert KnownModel.last.calls == calls


@pytest.mark.usefixtures("known")
def test_a_refusal_is_the_end_if_it_shall_be() -> None:
    found = run(REFUSED, "known", 4096, stop_at_oom=True)
    assert (found.ooms, found.first_oom, found.events) == (1, 1, 2)
    assert KnownModel.last.calls[-1] == ("alloc", 1)


# Ours has created what it could before it knew that it would not do.
@pytest.mark.parametrize(("allocator", "held"), [("vmm", 100 * MIB), ("torch", 60 * MIB)])
def test_every_allocator_skips_what_was_refused(allocator: str, held: int) -> None:
    events = [
        (0, "a", 0, 20 * MIB),
        (1, "a", 1, 90 * MIB),
        (2, "r", 1, 0, 5),
        (3, "f", 1),
        (4, "a", 2, 40 * MIB),
        (5, "a", 3, 70 * MIB),
    ]
    found = run(from_events(events), allocator, 100 * MIB)
    assert (found.ooms, found.first_oom, found.events) == (2, 1, 6)
    assert (found.measures.live_peak, found.measures.reserved_peak) == (60 * MIB, held)
    stopped = run(from_events(events), allocator, 100 * MIB, stop_at_oom=True)
    assert (stopped.ooms, stopped.first_oom, stopped.events) == (1, 1, 2)


@pytest.mark.usefixtures("known")
def test_a_stream_has_work_for_the_lag_when_memory_it_uses_is_freed() -> None:
    trace = from_events(
        [
            (0, "a", 0, 512),
            (0, "r", 0, 0, 7),
            (0, "k", -1, 3 * MS, 7),
            (1 * MS, "f", 0),  # busy until 3 ms: 3 ms more
            (2 * MS, "a", 1, 512),
            (2 * MS, "f", 1),  # used by no other stream
        ]
    )
    run(trace, "known", lag_ns=5 * MS)
    kernels = [call for call in KnownModel.last.calls if call[0] == "kernel"]
    assert kernels == [("kernel", 7, 3 * MS), ("kernel", 7, 3 * MS)]


def late(again_at: int, *events: tuple[Any, ...]) -> Trace:
    """20 MiB that stream 1 used, freed at 1 us; another 20 MiB asked for later."""
    rows = [(0, "a", 0, 20 * MIB), (0, "r", 0, 0, 1), *events, (1000, "f", 0)]
    return from_events([*rows, (again_at, "a", 1, 20 * MIB)])


@pytest.mark.parametrize("allocator", ["torch", "torch-expandable", "paddle-auto-growth"])
def test_memory_comes_back_when_the_other_stream_is_done(allocator: str) -> None:
    def segments(trace: Trace, lag_ns: int) -> float:
        return run(trace, allocator, lag_ns=lag_ns).measures.reserved_peak / (20 * MIB)

    assert segments(late(4 * MS), 5 * MS) == 2
    assert segments(late(6 * MS), 5 * MS) == 1
    assert segments(late(4 * MS), 0) == 1
    kernel = (500, "k", -1, 10 * MS, 1)
    assert segments(late(6 * MS, kernel), 0) == 2
    assert segments(late(11 * MS, kernel), 0) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"allocator": "tcmalloc"}, "there is no allocator 'tcmalloc'; known are torch, "),
        ({"allocator": "torch", "capacity": 0}, "capacity: it must be at least 1 byte, but is 0"),
        ({"allocator": "torch", "lag_ns": -1}, "lag_ns: it must not be negative, but is -1"),
        ({"allocator": "torch", "color": 1}, "'color' is no setting of torch's allocator"),
        ({"allocator": "vmm", "color": 1}, "config: there is no key 'color'"),
        ({"allocator": "vmm", "limit": 1}, "the option limit of vmm cannot be set in a replay"),
        ({"allocator": "known", "color": 1}, "allocator known: got an unexpected keyword argument"),
    ],
)
@pytest.mark.usefixtures("known")
def test_what_is_wrong_is_said(words: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        run(REFUSED, **words)


@pytest.mark.parametrize("name", list(registry.MODELS))
def test_every_model_is_there_and_counts_the_same_things(name: str) -> None:
    assert registry.is_there(name)
    rows = [(0, "a", 0, 3 * MIB), (1, "a", 1, 512), (2, "m", -1), (3, "f", 0), (4, "f", 1)]
    found = run(from_events(rows), name).as_dict()
    assert (found["ooms"], found["live_peak"]) == (0, 3 * MIB + 512)
    assert found["reserved_peak"] >= 3 * MIB + 512
    assert found["driver_ns"] > 0
    assert {"retries", "syncs", "steals", "waits", "f_avg", "curve"} <= found.keys()
