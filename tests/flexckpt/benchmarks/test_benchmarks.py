# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The benchmarks run, and what they count is what happened."""

import json
import os
import subprocess
import sys

import pytest

from benchmarks.flexckpt.measure import Contender, Cost, measured, medians, ratios, together
from benchmarks.flexckpt.processes import start
from benchmarks.flexckpt.settings import Settings, parse_size
from tests.house.project import ROOT


def test_cost_counts_bytes_of_files_and_memory(tmp_path):
    size = 48 << 20
    (tmp_path / "file").write_bytes(bytes(size))
    order = []

    def read() -> None:
        order.append("call")
        (tmp_path / "file").read_bytes()

    cost = measured(Contender(read, lambda: order.append("prepare")))
    assert order == ["prepare", "call"]
    assert size <= cost.read < size + (1 << 20)
    assert size - (1 << 20) <= cost.peak < size + (16 << 20)  # the system counts in batches


def test_rows_of_several_ranks():
    both = together([Cost(1.0, 0.5, 10, 20, 7), Cost(3.0, 0.5, 30, 40, 7)])
    assert both == Cost(3.0, 1.0, 40, 60, 7)
    rows = {
        "ours": medians([both, both._replace(seconds=2.0), both._replace(seconds=10.0)]),
        "peer": medians([both._replace(seconds=6.0)]),
    }
    assert rows["ours"]["seconds"] == 3.0
    assert ratios(rows, "ours", ["peer", "absent"]) == {"ours_vs_peer": 2.0}


@pytest.mark.parametrize(
    ("text", "want"), [("64MiB", 2**26), ("1.5GiB", 3 * 2**29), ("7B", 7), ("2KiB", 2048)]
)
def test_sizes(text, want):
    assert parse_size(text) == want


def fails(settings: Settings) -> None:
    raise ValueError("as it should")


def environment_of_rank(settings: Settings, word: str) -> list[str]:
    return [os.environ["RANK"], os.environ["WORLD_SIZE"], word]


def test_processes_bring_back_results_and_errors(tmp_path, monkeypatch):
    settings = Settings(1, 1, tmp_path)
    arguments = {"word": "x"}
    assert start(environment_of_rank, settings, arguments, ranks=2) == ["0", "2", "x"]
    with pytest.raises(RuntimeError, match="ValueError: as it should"):
        start(fails, settings)


@pytest.mark.slow
@pytest.mark.dist
def test_benchmarks_run(tmp_path):
    names = ["reshard", "fuse", "merge", "async_save", "memory"]
    command = [sys.executable, "-m", "benchmarks.flexckpt", *names, "--size", "1MiB"]
    command += ["--rounds", "1", "--workdir", str(tmp_path), "--json", str(tmp_path / "out.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    assert list(results) == names
    for kind in ("load_same", "load_transposed", "save"):
        assert {"ours", "dcp"} < set(results["reshard"][kind])
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]  # nothing is left behind
