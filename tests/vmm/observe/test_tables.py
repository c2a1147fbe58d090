# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Chrome traces and CSV tables of a recording made by hand."""

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vmm.observe.made import BASE, PAGE, alloc, done, events, free, mapped, unmapped
from tests.vmm.observe.model import random_run
from vmm import Invalid
from vmm.observe.chrome_trace import kept
from vmm.observe.convert import to_trace
from vmm.observe.curves import curves
from vmm.observe.recording import Recording

TEXTS = {0: "", 1: "> step", 2: "< step", 3: "here", 4: "weights"}
NOTE = {"action": 13, "thread": 2}
STACKS = [(), (("a.py", 3, "f"), ("b.py", 4, "g"))]


def made() -> Recording:
    trace = to_trace(
        events(
            {**NOTE, "tag": 1},
            mapped(BASE, 6, 1),
            alloc(BASE, 1024, 1000, tag=4, stack=1, stream=1, thread=2),
            {**NOTE, "tag": 3},
            {"action": 6, "size": 99, "aux": 5},
            free(BASE, 1024, tag=4, stack=1),
            done(BASE, 1024),
            unmapped(BASE, 6, 2),
            mapped(BASE + PAGE, 6, 2),
            {"action": 9},
            {**NOTE, "tag": 2},
        ),
        tag_text=TEXTS.__getitem__,
        stacks=STACKS,
        streams=(0, 77),
    )
    return Recording({0: trace})


def chrome(recording: Recording, path: Path, **keys: Any) -> list[dict[str, Any]]:
    recording.to_chrome(path, **keys)
    data = path.read_bytes()
    text = gzip.decompress(data) if path.suffix == ".gz" else data
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    return found


def test_chrome_markers(tmp_path: Path) -> None:
    found = chrome(made(), tmp_path / "x.json")
    marks = [(e["ph"], e["name"], e["ts"]) for e in found if e["ph"] in "BEi"]
    assert marks == [
        ("B", "step", 0.0),
        ("i", "here", 3.0),
        ("i", "out of memory", 4.0),
        ("i", "steal: move", 8.0),
        ("i", "step", 9.0),
        ("E", "step", 10.0),
    ]
    assert {e["tid"] for e in found if e["ph"] in "BE"} == {2}
    assert next(e for e in found if e["name"] == "out of memory")["args"] == {"bytes": 99}


def test_chrome_counters(tmp_path: Path) -> None:
    recording = made()
    counters = [e for e in chrome(recording, tmp_path / "x.json") if e["ph"] == "C"]
    totals = curves(recording.trace)
    for name in ("allocated", "active", "requested", "mapped"):
        assert [e["args"][name] for e in counters] == getattr(totals, name).tolist()
    assert [e["ts"] for e in counters] == [float(n) for n in range(11)]


def test_chrome_is_thinned_but_keeps_the_peak(tmp_path: Path) -> None:
    _, _, recording, _ = random_run(3, steps=400)
    few = [e for e in chrome(recording, tmp_path / "x.json.gz", max_points=20) if e["ph"] == "C"]
    assert 10 <= len(few) <= 20
    totals = curves(recording.trace)
    assert max(e["args"]["allocated"] for e in few) == totals.allocated.max()
    with pytest.raises(Invalid, match="max_points: must be a whole number from 2, but is 1"):
        recording.to_chrome(tmp_path / "y.json", max_points=1)


def test_kept_points() -> None:
    values = np.array([5, 1, 9, 3, 3, 3, 0, 8])
    assert kept(values, 8).tolist() == list(range(8))
    assert kept(values, 4).tolist() == [1, 2, 6, 7]
    assert kept(values, 2).tolist() == [2, 6]
    assert kept(values, 3).tolist() == [2, 6]


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_csv(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    made().to_csv(path)
    data = path.read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["action"] for row in rows] == [
        "note",
        "page mapped",
        "alloc",
        "note",
        "out of memory",
        "free",
        "free completed",
        "page unmapped",
        "page mapped",
        "step mark",
        "note",
    ]
    assert rows[2] == {
        "time_ns": "2000",
        "action": "alloc",
        "id": "0",
        "address": hex(BASE),
        "size": "1024",
        "requested": "1000",
        "page": "",
        "cause": "",
        "stream": "77",
        "pool": "0",
        "thread": "2",
        "tag": "weights",
        "allocated": "1024",
        "active": "1024",
        "mapped": str(PAGE),
        "stack": "a.py:3:f;b.py:4:g",
    }
    assert (rows[8]["page"], rows[8]["cause"]) == ("6", "move")
    assert [row["allocated"] for row in rows] == ["0"] * 2 + ["1024"] * 3 + ["0"] * 6


def test_empty_recordings_have_files(tmp_path: Path) -> None:
    empty = Recording({0: to_trace(events())})
    assert [e["ph"] for e in chrome(empty, tmp_path / "x.json")] == ["M"]
    empty.to_csv(tmp_path / "x.csv")
    assert len((tmp_path / "x.csv").read_text().splitlines()) == 1
    empty.save(tmp_path / "x.vmmtrace")
    empty.to_torch_snapshot(tmp_path / "x.pickle")
    assert len(empty) == 0
