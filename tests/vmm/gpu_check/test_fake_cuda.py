# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The checks that need no kernel, on the cuda driver over a libcuda without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.house.project import ROOT
from tests.vmm.drivers import fake_cuda

SCRIPT = """
import json
from benchmarks.vmm.gpu import call_costs
from benchmarks.vmm.gpu.raw_driver import RawDriver

with RawDriver("driver=cuda\\nchecking=1") as driver:
    size = driver.capabilities().granularity
    free, total = driver.memory()
    row = call_costs.one_round(driver, size, 8, 4)
    events = call_costs.event_costs(driver)
    left, _ = driver.memory()
print(json.dumps([size, free - left, sorted(row), sorted(events)]))
"""


def test_costs_are_measured_through_the_cuda_driver(tmp_path: Path) -> None:
    fake_cuda.build(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        env=fake_cuda.environment(tmp_path),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    size, leaked, calls, events = json.loads(done.stdout)
    assert size >= 4096
    assert leaked == 0
    assert calls == sorted(
        ["va_reserve", "page_create", "map", "set_access", "unmap", "page_release", "va_free"]
    )
    assert events == ["event_query", "event_record", "stream_wait"]
