# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A training run has the same losses, to the bit, whoever serves its memory."""

import json
import os
import subprocess
import sys

import pytest

from tests.house.project import ROOT
from vmm.sim.readers import read_any

BUILT = sorted((ROOT / "vmm").glob("_torch_cpu*.so"))
pytestmark = pytest.mark.skipif(not BUILT, reason="the hook for CPU tensors was not built")

SIZES = ("--steps", "5", "--hidden", "64", "--experts", "4", "--longest", "128")


def train(tmp_path, allocator, *words, config=""):
    out = tmp_path / f"{allocator}.json"
    command = [sys.executable, "examples/train_moe_vmm.py", "--allocator", allocator]
    done = subprocess.run(
        [*command, *SIZES, *words, "--json", str(out)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "VMM_CONF": config},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text()), done.stdout


@pytest.fixture(scope="module")
def losses_of_torch(tmp_path_factory):
    return train(tmp_path_factory.mktemp("torch"), "torch", "--workers", "0")[0]["losses"]


def test_losses_are_equal_to_the_bit_with_forked_workers(tmp_path, losses_of_torch):
    ours, text = train(tmp_path, "vmm", "--workers", "2")
    assert ours["losses"] == losses_of_torch
    assert ours["losses"][-1] < ours["losses"][0]
    assert len(text.splitlines()) == 1 + 5 + 2

    before, after = ours["before"], ours["after"]
    assert after["allocated_bytes.all.current"] == before["allocated_bytes.all.current"] > 0
    assert after["allocated_bytes.all.current"] <= after["reserved_bytes.all.current"]
    assert after["reserved_bytes.all.current"] <= before["reserved_bytes.all.current"]
    assert before["num_ooms"] == 0


def test_pages_may_be_stolen_under_a_training_run_that_is_recorded(tmp_path, losses_of_torch):
    """Small pages, which come from another place if they can, under a model of all mappings."""
    path = tmp_path / "run.vmmtrace.gz"
    config = "page:64KiB,granularity:64KiB,policy:steal_first,checking:1"
    words = ("--workers", "0", "--recording", str(path))
    ours, _ = train(tmp_path, "vmm", *words, config=config)
    assert ours["losses"] == losses_of_torch
    assert ours["before"]["steals.move"] + ours["before"]["steals.alias"] > 100

    trace = read_any(path)
    ops = [chr(op) for op in trace.op]
    assert ops.count("m") == 5
    assert ops.count("a") >= ops.count("f") > 1000
