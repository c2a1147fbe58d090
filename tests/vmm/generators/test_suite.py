# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The suite: what it holds, that it repeats, and the values that reports rest on."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.house.project import ROOT
from vmm.errors import Invalid
from vmm.sim import suite
from vmm.sim.generators.registry import generate, generator
from vmm.sim.trace import Trace

# allocations, frees, records of streams, steps, peak of live bytes in multiples of 512
FROZEN = {
    "moe-per-expert": (14794, 14373, 0, 3, 52562653184),
    "moe-grouped": (6780, 6639, 0, 3, 52465761280),
    "moe-recompute": (25387, 24882, 0, 3, 29960330240),
    "moe-all-to-all": (14794, 14373, 960, 3, 52562653184),
    "varlen": (16505, 15708, 0, 12, 54797464576),
    "lora-varlen": (17751, 16992, 0, 12, 26004259840),
    "rl-one-stream": (50917, 50456, 0, 3, 49750661632),
    "rl-two-streams": (50917, 50456, 0, 3, 49750661632),
    "fsdp": (3655, 3556, 262, 2, 33565229056),
    "pipeline": (15759, 15534, 768, 3, 53484732416),
    "inference": (49621, 49202, 0, 200, 41959301120),
    "pinned-growing": (348, 288, 0, 12, 6897657856),
    "robson": (24560, 24384, 0, 10, 4294967296),
}


def digest(trace: Trace) -> str:
    sum_ = hashlib.sha256()
    for values in trace.columns.values():
        sum_.update(values.tobytes())
    return sum_.hexdigest()


@pytest.mark.parametrize("name", FROZEN)
def test_values_of_each_trace(name: str) -> None:
    trace = suite.trace(name)
    counts = [int(np.count_nonzero(trace.is_op(letter))) for letter in "afr"]
    assert (*counts, trace.steps, int(trace.live(512).max())) == FROZEN[name]
    streams = np.unique(trace.stream[trace.is_op("a")])
    assert suite.multi_stream(name) == (len(streams) > 1)
    # All fit the device that the header names, and a header can be written to a file.
    assert FROZEN[name][-1] < trace.header["device_capacity"] == 80 << 30
    assert json.loads(json.dumps(trace.header))["name"] == name
    kind, own = suite.SUITE[name]
    assert trace.header["generator"] == kind
    assert {key: trace.header["parameters"][key] for key in own} == own


def test_all_of_the_suite_is_frozen() -> None:
    assert list(FROZEN) == list(suite.SUITE)


@pytest.mark.parametrize("name", ["moe", "varlen", "rl", "inference", "pinned_growing", "pipeline"])
def test_the_seed_decides(name: str) -> None:
    first, again, other = (generate(name, steps=1, seed=seed) for seed in (5, 5, 6))
    assert digest(first) == digest(again)
    assert digest(first) != digest(other)
    assert first.header["parameters"]["seed"] == 5


def test_the_process_does_not_matter() -> None:
    """Texts hash differently in each process; no order may come from that."""
    names = ["moe-all-to-all", "fsdp", "pipeline", "inference", "rl-two-streams", "lora-varlen"]
    program = (
        "from vmm.sim import suite; from hashlib import sha256\n"
        f"for name in {names}:\n"
        "    trace = suite.trace(name, steps=1)\n"
        "    columns = b''.join(each.tobytes() for each in trace.columns.values())\n"
        "    print(sha256(columns).hexdigest())\n"
    )
    for seed in ("1", "2"):
        words = [sys.executable, "-c", program]
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout.split() == [digest(suite.trace(name, steps=1)) for name in names]


def test_traces_are_made_when_asked_for() -> None:
    found = suite.traces(["robson", "pinned-growing"])
    assert [name for name, _ in found] == ["robson", "pinned-growing"]
    with pytest.raises(Invalid, match=r"there is no trace 'dense' in the suite; known are moe-per"):
        suite.traces(["robson", "dense"])
    with pytest.raises(Invalid, match="there is no trace"):
        suite.multi_stream("dense")


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("moe", {"layer": 1}, "there is no parameter 'layer'; known are call_ns, concentration"),
        ("moe", {"layers": 0}, "layers is 0; it takes at least 1"),
        ("moe", {"layers": 1.5}, "layers is 1.5; it takes an integer"),
        ("moe", {"layers": True}, "layers is True; it takes an integer"),
        ("moe", {"grouped": 1}, "grouped is 1; it takes true or false"),
        ("moe", {"imbalance": 1.0}, "imbalance is 1.0; it takes 0 to 0.99"),
        ("moe", {"drift": float("nan")}, "drift is nan; it takes 0 to 4"),
        ("moe", {"local": 65}, "local is 65; it is at most experts, 64"),
        ("pipeline", {"rank": 4}, "rank is 4; it is below stages, 4"),
        ("pipeline", {"microbatches": 6}, "microbatches is 6; it is a multiple of stages, 4"),
        ("robson", {"seed": -1}, "seed is -1; it takes at least 0"),
        ("dense", {}, "there is no generator 'dense'; known are moe, varlen"),
    ],
)
def test_bad_parameters(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(Invalid) as error:
        generate(name, **given)
    assert str(error.value).startswith(message)


def test_an_integer_is_a_number() -> None:
    assert generator("moe").parameters(flops=10**15).flops == 1e15
