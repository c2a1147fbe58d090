# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The benchmark of fragmentation: its rules, and one short run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.vmm.fragmenting.verdicts import verdicts
from tests.house.project import ROOT


def cells(f_peak: float, rival: float | None, **tight: Any) -> dict[str, dict[str, Any]]:
    at = {"ooms": 0, "syncs": 0, "steals_median_step": 0, "driver_share_without_growth": 0.0}
    found: dict[str, dict[str, Any]] = {
        "vmm": {"f_peak": f_peak, "c_star": 0.005, "at": {"1.03": at | tight}}
    }
    return found if rival is None else found | {"torch-expandable": {"f_peak": rival}}


def missed(found: dict[str, dict[str, Any]], streams: bool, steps: int = 3) -> list[str]:
    return [each.rule for each in verdicts(found, streams, steps) if each.met is False]


@pytest.mark.parametrize("streams", [False, True])
def test_the_rules(streams: bool) -> None:
    assert missed(cells(0.01, 0.02), streams) == []
    assert missed(cells(0.02, 0.05), streams) == ["F_peak, goal"]
    assert missed(cells(0.04, 0.05), streams) == ["F_peak, goal", "F_peak, floor"]
    limit = 300 if streams else 50
    assert missed(cells(0.01, 0.02, steals_median_step=limit), streams) == []
    over = cells(0.01, 0.02, steals_median_step=limit + 0.5, ooms=1, syncs=2)
    assert missed(over, streams) == ["moves per step at 1.03", "ooms at 1.03", "syncs at 1.03"]
    slow = cells(0.01, 0.02, driver_share_without_growth=0.011)
    assert missed(slow, streams) == ["driver time at 1.03, without new pages"]


def test_the_rival() -> None:
    assert missed(cells(0.005, 0.005), streams=True) == ["F_peak below expandable"]
    assert missed(cells(0.008, 0.0051), streams=False) == []
    assert missed(cells(0.008, 0.0049), streams=False) == ["F_peak no worse than expandable"]


def test_what_cannot_be_judged_is_said() -> None:
    found = verdicts(cells(0.01, None), False, 1)
    assert [(each.limit, each.met) for each in found if each.met is None] == [
        ("torch-expandable was not run", None),
        ("the trace has no second step", None),
    ]


def test_a_run(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.vmm.fragmentation", "--only", "pinned-growing"]
    command += ["--allocator", "torch,torch-expandable,vmm", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "verdicts on vmm" in done.stdout
    found = json.loads(out.read_text())
    assert (found["missing"], found["errors"]) == ([], [])
    row = found["traces"]["pinned-growing"]
    assert (row["steps"], row["streams"]) == (12, 1)
    assert set(row["cells"]) == {"torch", "torch-expandable", "vmm"}
    assert row["cells"]["torch"]["f_peak"] > row["cells"]["torch-expandable"]["f_peak"] > 0.1
    assert row["cells"]["vmm"]["f_peak"] <= 0.01
    assert list(row["cells"]["vmm"]["at"]) == ["1.00", "1.02", "1.03", "1.05", "1.10"]
    assert [each["met"] for each in row["verdicts"]][:4] == [True] * 4
