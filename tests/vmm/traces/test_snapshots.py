# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Torch snapshots: what is read, what becomes of it as a trace, and what is refused."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from vmm.errors import FormatError
from vmm.sim.readers import read_any, read_snapshot, torch_snapshot
from vmm.sim.readers.torch_lite import from_lite
from vmm.sim.readers.torch_snapshot import from_torch
from vmm.sim.snapshot import ACTIONS

M = 1 << 20
FRAMES = [
    {"filename": "a.py", "line": 3, "name": "f"},
    {"filename": "b.py", "line": 4, "name": "g"},
]


def event(action: str, addr: int, size: int, time: int, **more: Any) -> dict[str, Any]:
    known = {
        "action": action,
        "addr": addr,
        "size": size,
        "stream": 0,
        "time_us": time,
        "frames": [],
    }
    return known | more


def sample() -> dict[str, Any]:
    """Two segments; a block from before the first event is freed, another stays."""
    return {
        "segments": [
            {
                "device": 0,
                "address": 0x400000,
                "total_size": 2 * M,
                "stream": 0x7F00,
                "segment_type": "small",
                "segment_pool_id": (0, 2),
                "is_expandable": False,
                "frames": [],
                "blocks": [
                    {
                        "address": 0x400000,
                        "size": 512,
                        "requested_size": 9,
                        "state": "active_allocated",
                    },
                    {
                        "address": 0x400200,
                        "size": 2 * M - 512,
                        "requested_size": 0,
                        "state": "inactive",
                    },
                ],
            },
            {
                "device": 0,
                "address": 0x200000,
                "total_size": 2 * M,
                "stream": 0,
                "segment_type": "small",
                "segment_pool_id": (0, 0),
                "is_expandable": False,
                "blocks": [
                    {
                        "address": 0x200000,
                        "size": 1024,
                        "requested_size": 600,
                        "state": "active_allocated",
                        "frames": FRAMES,
                    },
                    {
                        "address": 0x200400,
                        "size": 512,
                        "requested_size": 7,
                        "state": "active_pending_free",
                    },
                    {
                        "address": 0x200600,
                        "size": 2 * M - 1536,
                        "requested_size": 0,
                        "state": "inactive",
                    },
                ],
            },
        ],
        "device_traces": [
            [
                event("free_requested", 0x200000, 100, 50),
                event("free_completed", 0x200000, 100, 51),
                event("alloc", 0x200000, 600, 60, frames=FRAMES, user_metadata="weights"),
                {
                    "action": "oom",
                    "size": 10**9,
                    "device_free": 77,
                    "stream": 0,
                    "time_us": 61,
                    "frames": [],
                },
                event("alloc", 0x200400, 7, 62, frames=list(FRAMES)),
                event("free_requested", 0x200400, 7, 63),
                event("a new action", 0, 0, 64),
            ]
        ],
        "allocator_settings": {"max_split_size": -1},
    }


def test_a_snapshot_has_segments_events_and_tables() -> None:
    snapshot = from_torch(sample())
    assert [segment["address"] for segment in snapshot.segments] == [0x200000, 0x400000]
    first, second = snapshot.segments
    assert (first["stream"], first["pool"], second["stream"], second["pool"]) == (0, 0, 1, 1)
    assert (snapshot.streams, snapshot.pools) == ([0, 0x7F00], [(0, 0), (0, 2)])
    assert [block["state"] for block in first["blocks"]] == [
        "active_allocated",
        "active_awaiting_free",
        "inactive",
    ]
    assert [ACTIONS[code] for code in snapshot.action] == [
        "free_requested",
        "free_completed",
        "alloc",
        "oom",
        "alloc",
        "free_requested",
        "other",
    ]
    assert snapshot.addr.tolist() == [0x200000] * 3 + [77] + [0x200400] * 2 + [0]
    assert snapshot.size.tolist() == [100, 100, 600, 10**9, 7, 7, 0]
    assert snapshot.t_ns.tolist() == [0, 1000, 10_000, 11_000, 12_000, 13_000, 14_000]
    assert snapshot.stacks == [[], [("a.py", 3, "f"), ("b.py", 4, "g")]]
    assert snapshot.stack.tolist() == [0, 0, 1, 0, 1, 0, 0]
    assert first["blocks"][0]["stack"] == 1
    assert (snapshot.tags, snapshot.tag.tolist()) == (["", "weights"], [0, 0, 1, 0, 0, 0, 0])
    assert (snapshot.timed, snapshot.reserved) == (True, 4 * M)
    assert snapshot.notes == ["1 events of unknown actions"]


def test_its_trace_begins_with_what_was_live() -> None:
    trace = from_torch(sample()).to_trace()
    assert bytes(trace.op.tolist()).decode() == "aafaoaf"
    # The 100 bytes that are freed first and the 9 that stay, then as recorded.
    assert trace.extra["addr"].tolist() == [0x200000, 0x400000, *[0x200000] * 2, 0, *[0x200400] * 2]
    assert trace.bytes.tolist() == [100, 9, 100, 600, 10**9, 7, 7]
    assert trace.stream.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert trace.pool.tolist() == [0, 1, 0, 0, 0, 0, 0]
    assert trace.t_ns.tolist() == [0, 0, 0, 10_000, 11_000, 12_000, 13_000]
    assert trace.extra["stack"].tolist() == [0, 0, 0, 1, 0, 1, 0]
    assert trace.live()[-1] == 609
    assert trace.header["notes"] == [
        "1 events of unknown actions",
        "2 allocations from before the first event",
    ]
    full = from_torch(sample()).to_trace(completions=True)
    assert bytes(full.op.tolist()).decode() == "aafcaoaf"


def test_a_snapshot_without_events_is_what_is_live() -> None:
    data = sample()
    data["device_traces"] = []
    trace = from_torch(data).to_trace()
    assert bytes(trace.op.tolist()).decode() == "aa"
    assert trace.bytes.tolist() == [600, 9]


def test_events_without_times_are_10_us_apart() -> None:
    data = sample()
    for row in data["device_traces"][0]:
        del row["time_us"]
    assert from_torch(data).t_ns.tolist() == list(range(0, 70_000, 10_000))


def test_what_cannot_be_placed_is_counted() -> None:
    data = sample()
    data["device_traces"][0] = [
        event("free_completed", 0x200000, 100, 0),
        event("alloc", 0x200000, 0, 0),
        event("alloc", 0x200000, 50, 0),
        event("alloc", 0x200000, 600, 1),
    ]
    trace = from_torch(data).to_trace()
    assert bytes(trace.op.tolist()).decode() == "aafa"
    assert trace.header["notes"] == [
        "1 allocations from before the first event",
        "1 zero-size requests left out",
        "1 allocations at a live address: the earlier one ends there",
        "1 completed frees of unknown blocks left out",
    ]


def test_one_device_is_chosen() -> None:
    data = sample()
    data["device_traces"] = [[], data["device_traces"][0]]
    with pytest.raises(FormatError, match=re.escape("several devices are recorded (0, 1)")):
        from_torch(data)
    assert len(from_torch(data, device=1)) == 7
    assert from_torch(data, device=1).segments == []
    assert len(from_torch(data, device=0)) == 0
    assert len(from_torch(data, device=0).segments) == 2
    with pytest.raises(FormatError, match="nothing is recorded of device 2; there are: 0, 1"):
        from_torch(data, device=2)
    for segment in data["segments"]:
        segment["device"] = 1
    assert len(from_torch(data)) == 7


def test_old_snapshots_are_a_list_of_segments_with_histories() -> None:
    segments = sample()["segments"][1:]
    for block in segments[0]["blocks"]:
        del block["address"], block["requested_size"]
        block.pop("frames", None)
    segments[0]["blocks"][0]["history"] = [{"addr": 1, "real_size": 601, "frames": FRAMES}]
    snapshot = from_torch(segments)
    assert [block["address"] for block in snapshot.segments[0]["blocks"]] == [
        0x200000,
        0x200400,
        0x200600,
    ]
    assert snapshot.segments[0]["blocks"][0]["requested_size"] == 601
    assert snapshot.segments[0]["blocks"][0]["stack"] == 1


def test_a_pickle_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(sample(), 4))
    assert len(read_snapshot(path)) == 7
    assert read_snapshot(path).source == "torch snapshot snapshot.pickle"
    assert read_any(path).bytes.tolist() == [100, 9, 100, 600, 10**9, 7, 7]


def change(data: dict[str, Any], path: str, value: Any) -> None:
    *steps, last = path.split(".")
    where: Any = data
    for step in steps:
        where = where[int(step) if step.isdigit() else step]
    where[int(last) if last.isdigit() else last] = value


# What is changed, to what, and what is said.
WRONG = [
    ("segments", None, "segments of the snapshot is None, not a list"),
    ("segments", 5, "segments of the snapshot is 5, not a list"),
    ("segments.0", [], "segment 0 is a list of 0, not a table"),
    ("segments.0.device", "x", "a segment's device is 'x', not a number"),
    ("segments.0.address", -1, "a segment's address is -1, not a number from 0"),
    ("segments.0.address", 1 << 63, "not a number from 0 to 2\\*\\*63 - 1"),
    ("segments.0.address", True, "a segment's address is True, not a number"),
    ("segments.0.total_size", 5, "the segment at 0x400000 has 5 bytes, its blocks 2097152"),
    ("segments.0.segment_type", "huge", "is 'huge', neither 'small' nor 'large'"),
    (
        "segments.0.segment_pool_id",
        (1, 2, 3),
        "segment_pool_id of the segment at 0x400000 has 3 parts",
    ),
    ("segments.0.stream", "s", "stream of the segment at 0x400000 is 's', not a stream"),
    ("segments.0.blocks", {}, "blocks of the segment at 0x400000 is a dict of 0, not a list"),
    ("segments.0.blocks.0", 5, "a block of the segment at 0x400000 is 5, not a table"),
    (
        "segments.0.blocks.0.state",
        "gone",
        "the state of a block of the segment at 0x400000 is 'gone'",
    ),
    (
        "segments.0.blocks.0.state",
        [],
        "the state of a block of the segment at 0x400000 is a list of 0",
    ),
    ("segments.0.blocks.0.size", 0, "do not tile it: a block of 0 bytes is at 0x400000"),
    ("segments.0.blocks.1.address", 0x400400, "do not tile it: .* at 0x400400, not 0x400200"),
    ("segments.1.address", 0x400000, "do not tile|overlaps"),
    ("device_traces", 5, "device_traces of the snapshot is 5, not a list"),
    ("device_traces.0", 5, "a device's trace is 5, not a list"),
    ("device_traces.0.0", 5, "event 0 is a int, not a table"),
    ("device_traces.0.1.size", -3, "size of event 1 is -3, not a number"),
    ("device_traces.0.1.addr", 2.5, "addr of event 1 is 2.5, not a number"),
    ("device_traces.0.1.time_us", 1 << 60, "time_us of an event is 1152921504606846976"),
    ("device_traces.0.1.frames", 7, "frames is 7, not a list"),
    ("device_traces.0.1.frames", ["f"], "a frame is a str, not a table"),
    ("device_traces.0.1.pool_id", 4, "pool_id of event 1 is 4, not a list"),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG)
def test_wrong_values_are_named(path: str, value: Any, text: str) -> None:
    data = sample()
    change(data, path, value)
    with pytest.raises(FormatError, match=text):
        from_torch(data)


def test_lists_that_hold_one_another_are_no_bomb() -> None:
    bomb: Any = ["x" * 10]
    for _ in range(60):
        bomb = [bomb, bomb]
    for path in (
        "segments.0.segment_type",
        "segments.0.blocks.0.state",
        "segments.0.blocks",
        "segments.0.segment_pool_id",
        "device_traces.0.1.size",
        "device_traces.0.1.frames",
    ):
        data = sample()
        change(data, path, bomb)
        with pytest.raises(FormatError):
            from_torch(data)
    data = sample()
    data["allocator_settings"] = {"a": bomb, "b": {"c": bomb, "d": 1}, "e": 2}
    change(
        data, "device_traces.0.1.frames", [{"filename": bomb, "name": {"n": bomb}, "line": bomb}]
    )
    snapshot = from_torch(data)
    assert snapshot.stacks[2] == [("", 0, "")]
    assert snapshot.to_trace().header["settings"] == {"b": {"d": 1}, "e": 2}


def test_a_list_of_blocks_that_is_named_too_often_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch_snapshot, "MAX_BLOCKS", 1500)
    data = sample()
    blocks = [{"size": 1, "state": "inactive"}] * 1000
    one = data["segments"][0] | {"total_size": 1000, "blocks": blocks}
    data["segments"] = [one | {"address": at << 30} for at in range(2)]
    with pytest.raises(FormatError, match="there are more than 1500 blocks"):
        from_torch(data)


@pytest.mark.parametrize("data", [None, 5, "x", [1], [[]], {}, {"segments": [{}]}])
def test_what_is_no_snapshot_is_refused(data: Any) -> None:
    with pytest.raises(FormatError):
        from_torch(data)


def lite() -> dict[str, Any]:
    return {
        "format": "torch-snapshot-lite 1",
        "segments_at_end": [
            {
                "addr": 0,
                "size": 2 * M,
                "type": "small",
                "stream": 0,
                "blocks": [[0, 512, 9, "active_allocated"], [512, 2 * M - 512, 0, "inactive"]],
            }
        ],
        "events": [["alloc", 0, 9, 0], ["alloc", 512, 8, 0, (0, 4)], ["free_requested", 512, 8, 0]],
    }


def test_the_short_form() -> None:
    snapshot = from_lite(lite())
    assert snapshot.size.tolist() == [9, 8, 8]
    assert snapshot.pool.tolist() == [0, 1, 0]
    assert snapshot.reserved == 2 * M
    trace = snapshot.to_trace()
    assert bytes(trace.op.tolist()).decode() == "aaf"
    assert trace.t_ns.tolist() == [0, 10_000, 20_000]


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("format", "torch-snapshot-lite 2", "the format is 'torch-snapshot-lite 2', not"),
        ("events", None, "events is None, not a list"),
        ("events.0", ["alloc"], "event 0 has 1 parts, not 4"),
        ("segments_at_end.0.blocks.0", [1], "a block has 1 parts, not 4"),
        ("segments_at_end.0.type", None, "neither 'small' nor 'large'"),
    ],
)
def test_wrong_values_of_the_short_form_are_named(path: str, value: Any, text: str) -> None:
    data = lite()
    change(data, path, value)
    with pytest.raises(FormatError, match=text):
        from_lite(data)
