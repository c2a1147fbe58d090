# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A real training step of torch on the CPU, seen from the outside."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from tests.vmm.observe.page_walk import check_pickle, check_snapshot
from vmm import native

SCRIPT = Path(__file__).with_name("torch_run.py")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(
    not list(native.library_path().parent.glob("_torch_cpu*.so")),
    reason="needs the hook into torch's CPU allocator, which was not built",
)
def test_a_training_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    step, forward, backward = seen["allocs"]
    assert forward >= 5  # the input, two products, the ReLU, the square, the sum
    assert backward >= 4  # a gradient for each parameter
    assert step > forward + backward
    assert seen["curve_end"] == seen["stats_end"] == seen["live"][1]
    assert seen["live"][1] - seen["live"][0] == seen["net"]
    requested, tag, file, _, function = seen["largest"]
    assert (requested, tag, file, function) == (4_000_000, "step", str(SCRIPT), "main")
    assert {"step", "step/backward"} <= set(seen["tags"])
    assert "step/backward" in seen["summary"]
    data = (tmp_path / "run.pickle").read_bytes()
    check_pickle(data)
    before, curve = check_snapshot(pickle.loads(data))[0]
    assert len(before) >= 4  # the parameters
    assert max(curve) > curve[-1] > 0
