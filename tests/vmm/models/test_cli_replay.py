# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm replay`` as its users call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.project import ROOT
from vmm.cli.main import main
from vmm.cli.replay import parse_capacity, parse_time, parse_value
from vmm.errors import Invalid
from vmm.sim import suite, trace_file
from vmm.sim.trace import from_events

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """12 and 3 MiB: torch needs 32 MiB for them."""
    path = tmp_path / "small.vmmtrace.gz"
    rows = [(0, "a", 0, 12 * MIB), (1, "a", 1, 3 * MIB), (2, "m", -1), (3, "f", 0)]
    trace_file.write(path, from_events(rows))
    return path


def called(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "vmm", "replay", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_table_and_json(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    words = ["--capacity", "unlimited,1.1x", "--capacity-search", "--json", out]
    done = called(small, "--allocator", "torch,vmm", *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "small.vmmtrace.gz: 4 events, 1 steps" in done.stdout
    rows = [line.split("│") for line in done.stdout.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["torch", "torch", "vmm", "vmm"]
    assert rows[0][5].strip() == "53.12%"  # 1 - 15 / 32
    found = json.loads(out.read_text())
    assert found["format"] == "vmm-replay 1"
    (trace,) = found["traces"]
    assert (trace["trace"], trace["live_peak"]) == ("small.vmmtrace.gz", 15 * MIB)
    torch, tight, ours, _ = trace["results"]
    assert (torch["reserved_peak"], torch["f_peak"], torch["ooms"]) == (32 * MIB, 1 - 15 / 32, 0)
    assert (tight["capacity"], tight["ooms"]) == (int(15 * MIB * 1.1), 1)
    assert (ours["ooms"], ours["curve"]["live"]) == (0, [12 * MIB, 15 * MIB, 15 * MIB, 3 * MIB])
    for allocator, need in (("torch", 32 * MIB), ("vmm", 16 * MIB)):  # ours: 8 pages
        least = trace["capacity_search"][allocator]
        assert least["failed"] < need <= least["capacity"] <= need + 15 * MIB // 1000


def test_a_modelled_trace_and_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--allocator", "torch", "--option", "torch.large_segment_size_mb=32"]
    assert main(["replay", "pinned-growing", *words]) == 0
    changed = capsys.readouterr().out
    assert main(["replay", "pinned-growing", "--allocator", "torch"]) == 0
    assert changed.splitlines()[0] == capsys.readouterr().out.splitlines()[0]
    assert f"pinned-growing: {len(suite.trace('pinned-growing'))} events, 12 steps" in changed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "there is no file 'nothing', and no modelled trace of that name; known are"),
        (["fsdp", "--allocator", "x"], "there is no allocator 'x'; known are torch, "),
        (["fsdp", "--allocator", "vmm,"], "--allocator takes words with commas between them"),
        (["fsdp", "--capacity", "3q"], "--capacity takes sizes like 80GiB, 1.03x or unlimited"),
        (["fsdp", "--capacity", "0x"], "--capacity takes sizes like 80GiB, 1.03x or unlimited"),
        (["fsdp", "--lag", "5 h"], "--lag takes a time like 5ms (ns, us, ms, s), not '5 h'"),
        (["fsdp", "--option", "vmm.page"], "--option takes ALLOCATOR.KEY=VALUE, not 'vmm.page'"),
        (["fsdp", "--option", "gmlake.a=1"], "gmlake is not one of --allocator"),
        (["fsdp", "--option", "vmm.color=1"], "config: there is no key 'color'"),
        (["fsdp", "--option", "torch.color=1"], "'color' is no setting of torch's allocator"),
        (["fsdp", "--option", "vmm.limit=1"], "the option limit of vmm cannot be set in a replay"),
        (["fsdp", "--json", "/no/such/place.json"], "its folder does not exist"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *words]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("vmm replay: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


def test_an_error_ends_the_program_with_1() -> None:
    done = called("nothing")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no file 'nothing'" in done.stderr


def test_words_for_sizes_times_and_values() -> None:
    assert parse_capacity("unlimited", 100) is None
    assert parse_capacity("80GiB", 100) == 80 * GIB
    assert parse_capacity("1.5 MiB", 100) == 3 * MIB // 2
    assert parse_capacity("1.03x", 1000) == 1030
    assert parse_capacity("4096", 1) == 4096
    assert [parse_time(text) for text in ("5ms", "1.5us", "7", "0")] == [5_000_000, 1500, 7, 0]
    assert parse_value("512MiB") == 512 * MIB
    assert parse_value("0.5GiB") == GIB // 2
    assert parse_value("12") == 12
    assert parse_value("0.25") == 0.25
    assert parse_value("true") is True
    assert parse_value("[256:1,>:4]") == "[256:1,>:4]"
    assert parse_value("steal_first") == "steal_first"
    with pytest.raises(Invalid):
        parse_time("-1ms")
