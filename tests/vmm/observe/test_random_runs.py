# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings of random runs against a model in plain Python, their exports against a checker."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vmm.observe.model import Model, random_run
from tests.vmm.observe.page_walk import check_pickle, check_snapshot
from vmm import Allocator
from vmm.observe.curves import curves
from vmm.observe.recording import Recording
from vmm.observe.torch_pickle import snapshot_of
from vmm.sim import trace_file
from vmm.sim.readers import read_any
from vmm.sim.trace import Trace

POLICIES = st.sampled_from(
    [
        {"policy": "steal_first"},
        {"policy": "create_first"},
        {"policy": "steal_first", "alias": 0},
        {"policy": "steal_first", "cross_stream": "wait"},
    ]
)


def check_recording(one: Allocator, model: Model, recording: Recording, start: Model) -> None:
    trace = recording.trace.validate()
    initial = trace.header["initial_rows"]
    totals = curves(trace)
    rows = trace.is_op("af")
    rows[:initial] = False
    assert totals.requested[rows].tolist() == model.curve
    # The state at the start and at the end, as addresses.
    assert live_blocks(trace, initial) == start.live
    assert live_blocks(trace, len(trace)) == model.live
    stats = one.stats()
    if len(trace):
        assert totals.allocated[-1] == stats["allocated_bytes.all.current"]
        assert totals.mapped[-1] == stats["pages.mapped"] * stats["page_size"]
    assert pages(trace) == {s.address: s.page for s in one.slots() if s.page >= 0 and not s.stale}


def live_blocks(trace: Trace, count: int) -> dict[int, int]:
    live: dict[int, tuple[int, int]] = {}
    for op, id, addr, requested in zip(
        trace.op[:count].tolist(),
        trace.id[:count].tolist(),
        trace.extra["addr"][:count].tolist(),
        trace.extra["requested"][:count].tolist(),
        strict=True,
    ):
        if op == ord("a"):
            live[id] = (addr, requested)
        elif op == ord("f"):
            assert live.pop(id)[0] == addr
    return dict(live.values())


def pages(trace: Trace) -> dict[int, int]:
    homes: dict[int, int] = {}
    for op, addr, aux in zip(
        trace.op.tolist(), trace.extra["addr"].tolist(), trace.extra["aux"].tolist(), strict=True
    ):
        page = aux & ((1 << 56) - 1)
        if op == ord("M"):
            assert page not in homes.values(), "a page has one home"
            homes[addr] = page
        elif op == ord("U"):
            assert homes.pop(addr) == page
    return homes


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), POLICIES)
def test_recording_is_what_the_model_saw(seed: int, keys: dict[str, object]) -> None:
    check_recording(*random_run(seed, **keys))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10**6), POLICIES)
def test_snapshot_keeps_the_rules_of_the_page(seed: int, keys: dict[str, object]) -> None:
    _, model, recording, start = random_run(seed, **keys)
    snapshot = snapshot_of(recording.traces)
    check_pickle(pickle.dumps(snapshot, protocol=4))
    before, curve = check_snapshot(snapshot)[0]
    assert before == start.live
    entries = snapshot["device_traces"][0]
    at = [n for n, e in enumerate(entries) if e["action"] in ("alloc", "free_requested")]
    assert [curve[n] for n in at] == model.curve


def test_runs_on_the_host_driver() -> None:
    for seed in range(3):
        one, model, recording, start = random_run(seed, policy="steal_first", driver="host")
        check_recording(one, model, recording, start)
        check_snapshot(snapshot_of(recording.traces))
        one.close()


def test_runs_with_stolen_pages_are_among_them() -> None:
    moved = aliased = failed = 0
    for seed in range(12):
        one, model, recording, start = random_run(seed, policy="steal_first")
        check_recording(one, model, recording, start)
        check_snapshot(snapshot_of(recording.traces))
        stats = one.stats()
        moved += stats["steals.move"]
        aliased += stats["steals.alias"]
        failed += int(recording.trace.is_op("o").sum())
    assert moved > 5
    assert aliased > 20
    assert failed > 3


def test_a_run_without_the_start_of_the_ring(tmp_path: Path) -> None:
    """Events that the ring forgot are as if they had been before the recording."""
    import random

    from vmm.observe.recorder import Recorder

    one = Allocator(driver="null", device_bytes=256 << 20)
    chance, live = random.Random(3), {}
    with Recorder(max_entries=50, allocator=one) as recorder:
        for _ in range(300):
            if live and chance.random() < 0.5:
                address = chance.choice(list(live))
                one.free(address)
                del live[address]
            else:
                size = chance.randrange(1, 3 << 20)
                live[one.alloc(size)] = size
    recording = recorder.recording
    assert recording is not None
    assert len(recording) == 50
    assert recording.lost > 200
    assert live_blocks(recording.trace.validate(), len(recording.trace)) == live
    check_snapshot(snapshot_of(recording.traces))


@pytest.mark.parametrize("name", ["run.vmmtrace", "run.vmmtrace.gz"])
def test_saved_file_is_read_back(tmp_path: Path, name: str) -> None:
    _, _, recording, _ = random_run(5)
    recording.save(tmp_path / name)
    again = trace_file.read(tmp_path / name)
    for column, values in recording.trace.columns.items():
        assert np.array_equal(again.columns[column], values)
    assert again.header == recording.trace.header
    assert snapshot_of({0: again}) == snapshot_of(recording.traces)


def test_torch_snapshot_is_read_back_with_the_same_curve(tmp_path: Path) -> None:
    for seed in range(6):
        _, model, recording, start = random_run(seed, policy="steal_first")
        path = tmp_path / f"{seed}.pickle"
        recording.to_torch_snapshot(path)
        again = read_any(path)
        rows = np.flatnonzero(again.is_op("af"))
        assert again.live()[rows].tolist()[len(start.live) :] == model.curve
        first = again.extra["addr"][: len(start.live)].tolist()
        assert dict(zip(first, again.bytes.tolist(), strict=False)) == start.live


def test_small_requests_can_be_left_out() -> None:
    _one, model, recording, _ = random_run(8, min_size=1 << 20)
    trace = recording.trace.validate()
    live = {a: size for a, size in model.live.items() if size >= 1 << 20}
    assert live_blocks(trace, len(trace)) == live
    assert live != model.live
    check_snapshot(snapshot_of(recording.traces))
