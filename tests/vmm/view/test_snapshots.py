# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Torch snapshots: the segments become mapped ranges."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vmm.sim.readers.any import read_snapshot
from vmm.sim.readers.torch_snapshot import from_torch
from vmm.view import curves
from vmm.view.from_trace import from_snapshot
from vmm.view.open_file import open_recording
from vmm.view.recording import Recording

M = 1 << 20
BASE = 1 << 40
FOLDER = os.environ.get("VMM_TRACES")
needs_traces = pytest.mark.skipif(not FOLDER, reason="VMM_TRACES names no folder of snapshots")


def made() -> Recording:
    """A large segment from before, a small one that comes, one that goes, an expandable one."""

    def event(action: str, addr: int, size: int, t: int) -> dict[str, Any]:
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": t}

    def segment(at: int, size: int, blocks: list[Any], expandable: bool = False) -> dict[str, Any]:
        return {
            "address": at,
            "total_size": size,
            "stream": 0,
            "segment_type": "large",
            "is_expandable": expandable,
            "blocks": [
                {"address": a, "size": s, "requested_size": r, "state": state}
                for a, s, r, state in blocks
            ],
        }

    live, free = "active_allocated", "inactive"
    grown = BASE + 100 * M
    return from_snapshot(
        from_torch(
            {
                "segments": [
                    segment(
                        BASE, 20 * M, [(BASE, 8 * M, 8 * M, live), (BASE + 8 * M, 12 * M, 0, free)]
                    ),
                    segment(
                        BASE + 20 * M,
                        2 * M,
                        [
                            (BASE + 20 * M, 512, 500, live),
                            (BASE + 20 * M + 512, 2 * M - 512, 0, free),
                        ],
                    ),
                    segment(grown, 4 * M, [(grown, 4 * M, 0, free)], True),
                ],
                "device_traces": [
                    [
                        event("segment_free", BASE + 40 * M, 20 * M, 10),
                        event("segment_alloc", BASE + 20 * M, 2 * M, 20),
                        event("alloc", BASE + 20 * M, 500, 30),
                        event("segment_map", grown, 6 * M, 40),
                        event("alloc", grown, 5 * M, 50),
                        event("free_requested", grown, 5 * M, 60),
                        event("free_completed", grown, 5 * M, 70),
                        event("segment_unmap", grown + 4 * M, 2 * M, 80),
                    ]
                ],
            },
            source="made",
        ),
        "made.pickle",
    )


def test_held_and_live_of_a_made_snapshot() -> None:
    recording = made()
    first = recording.start_events
    assert len(recording) - first == 4 + 2 + 3 + 1  # the map is cut into three pieces
    held = curves.held(recording)
    assert held[first - 1] == 40 * M  # two segments stood before the first event
    assert held[first:].tolist()[:3] == [20 * M, 22 * M, 22 * M]
    assert held.max() == 40 * M
    assert held[-1] == 26 * M
    live = curves.live(recording)
    assert live[first - 1] == 8 * M
    assert live[-1] == 8 * M + 512
    assert live.max() == 13 * M + 512
    assert recording.t_ns[-1] - recording.t_ns[first] == 70_000


def test_a_snapshot_in_the_page(show: Any) -> None:
    recording = made()
    opened = show(recording)
    assert opened.tabs() == ["timeline", "map", "runs", "fragmentation", "events", "lifetime"]
    opened.open("map")
    opened.cursor(len(recording) - 1)
    assert opened.value("#map-blocks") == 2
    assert "3 segments" in opened.text("#view-map .facts")
    assert not opened.page.is_visible("canvas.pages")
    opened.open("runs")
    # Free memory of two segments is not one run, though their addresses are adjacent.
    assert opened.value("#runs-count") == 3
    assert opened.value("#runs-largest") == 12 * M
    assert opened.value("#runs-total") == 12 * M + (2 * M - 512) + 4 * M
    opened.check_quiet()


@needs_traces
def test_real_snapshots_hold_what_their_segments_say(show: Any) -> None:
    paths = sorted(Path(str(FOLDER)).glob("*.json.gz"))
    assert paths, f"no *.json.gz in {FOLDER}"
    for path in paths:
        snapshot, recording = read_snapshot(path), open_recording(path)
        held = curves.held(recording)
        assert held[-1] == snapshot.reserved
        assert held.min() >= 0
        last = len(recording) - 1
        blocks, maps = recording.blocks, recording.maps
        rows = curves.live_blocks(recording, last)
        ranges = np.flatnonzero((maps["birth"] <= last) & (maps["death"] > last))
        ranges = ranges[np.argsort(maps["addr"][ranges])]
        place = np.searchsorted(maps["addr"][ranges], blocks["addr"][rows], side="right") - 1
        inside = maps["addr"][ranges][place] + maps["bytes"][ranges][place]
        assert np.all(blocks["addr"][rows] + blocks["size"][rows] <= inside)
    opened = show(recording)
    for tab in opened.tabs():
        opened.open(tab)
    assert opened.value("#peak-held") == held.max()
    opened.check_quiet()
