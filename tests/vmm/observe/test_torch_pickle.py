# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Snapshots for torch: made by hand, then given to torch's own tools."""

import pickle
from pathlib import Path

import pytest

from tests.vmm.observe.made import (
    BASE,
    LARGE,
    PAGE,
    alloc,
    block,
    done,
    events,
    free,
    mapped,
    slot,
    state,
    unmapped,
)
from tests.vmm.observe.model import random_run
from tests.vmm.observe.page_walk import check_snapshot
from vmm import Allocator, Invalid
from vmm.observe.api import record, snapshot
from vmm.observe.convert import to_trace
from vmm.observe.torch_pickle import ADDRESS_LIMIT, snapshot_of, write
from vmm.sim.trace import from_events


def test_a_stolen_page_goes_before_it_comes() -> None:
    trace = to_trace(
        events(
            alloc(LARGE, PAGE),
            free(LARGE, PAGE),
            done(LARGE, PAGE),
            # The core may report the new home first.
            mapped(LARGE + 4 * PAGE, 1, 3),
            unmapped(LARGE, 1, 3),
            mapped(LARGE + 5 * PAGE, 2, 2),
            alloc(LARGE + 4 * PAGE, PAGE + 512, 2 * PAGE // 2),
        ),
        after=state(
            [block(LARGE + 4 * PAGE, PAGE + 512)],
            [slot(LARGE + 4 * PAGE, 1), slot(LARGE + 5 * PAGE, 2)],
        ),
    )
    data = snapshot_of({0: trace})
    check_snapshot(data)
    assert [(e["action"], e["addr"] - LARGE, e["size"]) for e in data["device_traces"][0]] == [
        ("alloc", 0, PAGE),
        ("free_requested", 0, PAGE),
        ("free_completed", 0, PAGE),
        ("segment_unmap", 0, PAGE),
        ("segment_map", 4 * PAGE, 2 * PAGE),
        ("alloc", 4 * PAGE, PAGE),
    ]
    (segment,) = data["segments"]
    assert (segment["address"], segment["total_size"]) == (LARGE + 4 * PAGE, 2 * PAGE)
    assert segment["stream"] == 1
    assert segment["segment_type"] == "large"
    assert [(b["state"], b["size"], b["requested_size"]) for b in segment["blocks"]] == [
        ("active_allocated", PAGE + 512, PAGE),
        ("inactive", PAGE - 512, 0),
    ]


def test_arenas_that_touch_are_two_segments() -> None:
    last = LARGE - PAGE
    after = state([block(last, 512)], [slot(last, 0), slot(LARGE, 1), slot(LARGE + PAGE, 2)])
    data = snapshot_of({0: to_trace(events(), after=after)})
    check_snapshot(data)
    assert [(s["address"], s["total_size"], s["stream"]) for s in data["segments"]] == [
        (last, PAGE, 0),
        (LARGE, 2 * PAGE, 1),
    ]
    assert data["device_traces"] == [[]]


def test_pending_blocks_and_their_name() -> None:
    trace = to_trace(
        events(free(BASE, 1024)), after=state([block(BASE, 1024, "pending")], [slot(BASE, 0)])
    )
    for name in ("active_awaiting_free", "active_pending_free"):
        data = snapshot_of({0: trace}, pending_name=name)
        (segment,) = data["segments"]
        assert segment["blocks"][0]["state"] == name
        assert (segment["allocated_size"], segment["active_size"]) == (0, 1024)
    check_snapshot(snapshot_of({0: trace}))
    with pytest.raises(Invalid, match=r"pending_name: must be one of .* but is 'waiting'"):
        snapshot_of({0: trace}, pending_name="waiting")


def test_out_of_memory_has_no_address() -> None:
    oom = {"action": 6, "size": 777, "aux": 99}
    data = snapshot_of({0: to_trace(events(mapped(BASE, 0), oom))})
    assert data["device_traces"][0][1] == {
        "action": "oom",
        "device_free": 99,
        "size": 777,
        "stream": 0,
        "frames": [],
        "pool_id": (0, 0),
        "time_us": 2,
    }


def test_stacks_and_tags() -> None:
    trace = to_trace(
        events(mapped(BASE, 0), alloc(BASE, 512, stack=1, tag=2), free(BASE, 512, stack=1, tag=2)),
        tag_text={0: "", 2: "weights"}.__getitem__,
        stacks=[(), (("a.py", 3, "f"), ("b.py", 4, "g"))],
    )
    data = snapshot_of({0: trace})
    check_snapshot(data)
    made, freed = data["device_traces"][0][1:]
    frames = [
        {"filename": "a.py", "line": 3, "name": "f"},
        {"filename": "b.py", "line": 4, "name": "g"},
    ]
    assert made["frames"] == freed["frames"] == frames
    assert made["category"] == "weights"
    assert data["device_traces"][0][0]["category"] == "unknown"


def test_a_category_is_called_unknown() -> None:
    """Whether or not an entry is left that has none."""
    rows = [alloc(BASE, 512, tag=2), alloc(BASE + 512, 512, tag=2)]
    after = state([block(BASE, 512), block(BASE + 512, 512)], [slot(BASE, 0)])
    for more in ([], [free(BASE, 512, tag=2)]):
        trace = to_trace(events(*rows, *more), after=after, tag_text={0: "", 2: "t"}.__getitem__)
        data = snapshot_of({0: trace})
        check_snapshot(data)
        categories = [e.get("category") for e in data["device_traces"][0]]
        assert categories == ["t", "t", "unknown"]
    trace = to_trace(events(alloc(BASE, 512)), after=after)
    assert "category" not in snapshot_of({0: trace})["device_traces"][0][0]


def test_blocks_of_a_sleeping_pool_come_back() -> None:
    one = Allocator(driver="null", device_bytes=256 << 20)
    pool = one.pool_create("pool")
    kept = [one.alloc(size, pool=pool) for size in (3 << 20, 5 << 20, 700)]
    with record(1 << 12, allocator=one) as recorder:
        one.pool_sleep(pool)
        asleep = snapshot(allocator=one)
        one.free(kept[1])
        one.pool_wake(pool)
    check_snapshot(asleep)
    assert sum(s["allocated_size"] for s in asleep["segments"]) == 0
    assert recorder.recording is not None
    data = snapshot_of(recorder.recording.traces)
    before, curve = check_snapshot(data)[0]
    assert before == {kept[0]: 3 << 20, kept[1]: 5 << 20, kept[2]: 700}
    assert min(curve) == 0
    assert curve[-1] == (3 << 20) + 700
    # A recording that begins while the pool sleeps.
    one.pool_sleep(pool)
    with record(1 << 12, allocator=one) as recorder:
        one.pool_wake(pool)
    assert recorder.recording is not None
    before, curve = check_snapshot(snapshot_of(recorder.recording.traces))[0]
    assert before == {}
    assert curve[-1] == (3 << 20) + 700


def test_refusals() -> None:
    with pytest.raises(Invalid, match="no column addr"):
        snapshot_of({0: from_events([(0, "a", 0, 512)])})
    with pytest.raises(Invalid, match="no M rows"):
        snapshot_of({0: to_trace(events(alloc(BASE, 512)))})
    high = ADDRESS_LIMIT - PAGE
    snapshot_of({0: to_trace(events(mapped(high, 0)))})
    with pytest.raises(Invalid, match=r"below 2\^47"):
        snapshot_of({0: to_trace(events(mapped(high + PAGE, 0)))})


def test_live_snapshot_is_the_end_of_the_recording() -> None:
    one, model, recording, _ = random_run(2)
    live = snapshot(allocator=one)
    assert live["segments"] == snapshot_of(recording.traces)["segments"]
    assert live["device_traces"] == [[]]
    check_snapshot(live)
    with record(1 << 12, allocator=one):
        one.alloc(600)
        running = snapshot(allocator=one)
        assert running["device_traces"][0][-1]["action"] == "alloc"
        check_snapshot(running)
    size = {b["requested_size"] for s in running["segments"] for b in s["blocks"]} - {0}
    assert size == {*model.live.values(), 600}


def test_torch_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import _memory_viz as viz

    paths = []
    for seed in (0, 4):
        one, model, recording, _ = random_run(seed, policy="steal_first")
        paths.append(tmp_path / f"{seed}.pickle")
        recording.to_torch_snapshot(paths[-1])
    first, data = (pickle.loads(path.read_bytes()) for path in paths)
    # Torch prints sizes with one decimal; what it sums up is what the allocator holds.
    stats = one.stats()
    text = viz.segsum(data)
    assert f"total_allocated: {viz.Bytes(model.total)}" in text
    held = stats["pages.mapped"] * stats["page_size"]
    assert f"total_reserved: {viz.Bytes(held)}" in text
    entries = data["device_traces"][0]
    lines = viz.trace(data).splitlines()
    assert lines[:2] == ["Device 0 ----------------", f"{len(entries)} entries"]
    assert sum(" = " in line and "[" in line for line in lines) == sum(
        e["action"] == "alloc" for e in entries
    )
    for page in (viz.trace_plot(data), viz.segment_plot(data)):
        assert "snapshot.pickle" in page
    assert "Active Memory Timeline" in viz.trace_plot(data, filter_freed=False)
    graph = viz.compare(first["segments"], data["segments"], format_flamegraph=lambda text: text)
    assert graph.startswith("only_")
    total = sum(int(line.rsplit(" ", 1)[1]) for line in viz.memory(data, str).splitlines())
    assert total == held


def test_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(b"old")
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        write(path, {"segments": (name for name in "no generator can be pickled")})
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.pickle"]
    write(path, {"segments": []})
    assert pickle.loads(path.read_bytes()) == {"segments": []}
