# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The checks for a GPU, rehearsed on the host driver, and what they do when something is wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.vmm import gpu_check
from benchmarks.vmm.gpu import call_costs, checks, replay_one, report, training
from benchmarks.vmm.gpu.child import TimeLimitError, call_in_process
from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError
from benchmarks.vmm.gpu.raw_driver import RawDriver, RefusedError
from benchmarks.vmm.gpu.work import HostWork, open_both

MIB = 1 << 20


def rehearsed(name: str, folder: Path) -> dict[str, Any]:
    return checks.make(name, rehearse=True, folder=folder)


@pytest.mark.parametrize("name", ["G1", "G2", "G3", "G4"])
def test_checks_of_the_driver_pass_on_the_host_driver(name: str, tmp_path: Path) -> None:
    row = rehearsed(name, tmp_path)
    assert row["status"] == "passed", row
    assert row["figures"]


def test_replays_pass_on_the_null_driver(tmp_path: Path) -> None:
    row = rehearsed("G5", tmp_path)
    assert row["status"] == "passed", row
    assert row["figures"]["left_out"] == []
    assert all(replay["ooms"] == 0 for replay in row["figures"]["rows"])


@pytest.mark.parametrize("name", ["G4s", "G6", "G8"])
def test_checks_that_need_a_gpu_say_so(name: str, tmp_path: Path) -> None:
    row = rehearsed(name, tmp_path)
    assert row["status"] == "skipped"
    assert row["reason"]


def test_all_limits_together_are_below_eight_minutes() -> None:
    assert sum(check.seconds for check in checks.CHECKS.values()) < 480


def test_losses_that_differ_fail_the_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = {False: [3.0, 2.0, 1.0], True: [3.0, 2.0000001, 1.0]}
    monkeypatch.setattr(training, "in_process", lambda device, ours: runs[ours])
    with pytest.raises(FailedError, match=r"step 1: loss 2\.0000001 with ours, 2\.0 without"):
        training.run(Context(True, 10, tmp_path))
    runs[True] = runs[False]
    assert training.run(Context(True, 10, tmp_path))["last_loss"] == 1.0


def test_losses_repeat() -> None:
    assert training.losses("cpu", False, 2) == training.losses("cpu", False, 2)
    torch.use_deterministic_algorithms(False)


def test_a_word_that_was_not_written_is_counted() -> None:
    driver, work = open_both(rehearse=True)
    with driver:
        size = driver.capabilities().granularity
        base, page = driver.va_reserve(size), driver.page_create(size)
        driver.map(base, size, page)
        driver.set_access(base, size)
        work.write(1, base, size, 5)
        work.expect(1, base, size, 5)
        assert work.mismatches() == 0
        work.expect(1, base, size, 6)
        assert work.mismatches() == 1
        assert work.mismatches() == 0


def test_the_raw_driver_refuses_with_its_sentence() -> None:
    with RawDriver(HostWork.driver) as driver:
        with pytest.raises(RefusedError, match="unmap: invalid"):
            driver.unmap(1 << 30, 2 * MIB)
        with pytest.raises(AttributeError, match="no call 'fly'"):
            driver.fly  # noqa: B018


def test_costs_are_medians_of_each_call() -> None:
    with RawDriver(HostWork.driver) as driver:
        row = call_costs.one_round(driver, 4 * MIB, 8, 4)
    names = ["va_reserve", "page_create", "map", "set_access", "unmap", "page_release", "va_free"]
    assert list(row) == names
    assert all(value > 0 for value in row.values())


class Counted:
    """A memory with room for two blocks."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.live = 0

    def allocate(self, size: int, stream: int) -> Any:
        if self.live == 2:
            return None
        self.live += 1
        return [size]

    def free(self, block: Any) -> None:
        self.live -= 1

    def record(self, block: Any, stream: int) -> None:
        self.calls.append(("record", block[0], stream))

    def kernel(self, stream: int, ns: int) -> None:
        self.calls.append(("kernel", stream, ns))

    def wait(self, stream: int) -> None:
        self.calls.append(("wait", stream))

    def step(self) -> None:
        self.calls.append(("step",))

    def figures(self) -> dict[str, int]:
        return {}


def test_a_replay_goes_on_after_a_request_that_failed() -> None:
    from vmm.sim.trace import from_events

    rows = [(0, "a", 0, 10, 0), (1, "a", 1, 20, 0), (2, "a", 2, 30, 0), (3, "r", 2, 0, 1)]
    rows += [(4, "f", 2), (5, "f", 0), (6, "a", 3, 40, 1), (7, "r", 3, 0, 2), (8, "k", 0, 1000, 1)]
    rows += [(9, "s", 0, 0, 1), (10, "m", 0), (11, "f", 1)]
    memory = Counted()
    assert replay_one.play(from_events(rows), memory, 0.5) == {"ooms": 1}
    assert memory.live == 1
    assert memory.calls == [("record", 40, 2), ("kernel", 1, 500), ("wait", 1), ("step",)]


# Functions that the test below calls in other processes.


def answer(number: int, context: Context) -> dict[str, Any]:
    return {"number": number, "rehearse": context.rehearse, "folder": context.folder.name}


def fail() -> None:
    raise FailedError("it is not so")


def skip() -> None:
    raise SkippedError("nothing to check")


def die() -> None:
    sys.exit("a last word")


def sleep() -> None:
    time.sleep(60)


def called(name: str, *arguments: Any, seconds: float = 30) -> Any:
    return call_in_process(f"tests.vmm.gpu_check.test_rehearsal:{name}", arguments, {}, seconds)


def test_a_call_in_a_process_brings_its_answer_or_its_error(tmp_path: Path) -> None:
    context = {"rehearse": True, "seconds": 1, "folder": str(tmp_path / "here")}
    assert called("answer", 3, context) == {"number": 3, "rehearse": True, "folder": "here"}
    with pytest.raises(FailedError, match=r"^it is not so$"):
        called("fail")
    with pytest.raises(SkippedError, match=r"^nothing to check$"):
        called("skip")
    with pytest.raises(FailedError, match=r"status 1: .*a last word"):
        called("die")
    began = time.monotonic()
    with pytest.raises(TimeLimitError, match="longer than 2 s"):
        called("sleep", seconds=2)
    assert time.monotonic() - began < 50


def test_one_that_fails_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        "G1": {"status": "failed", "reason": "the map of pages is torn"},
        "G2": {"status": "passed", "figures": {"rows": [{"page_mib": 2, "map": 1.5}]}},
    }

    def make(name: str, **_: Any) -> dict[str, Any]:
        return {"check": name, "title": f"title of {name}", "seconds": 1.0, **rows[name]}

    monkeypatch.setattr(checks, "make", make)
    words = ["--rehearse", "--only", "G1", "G2", "--folder", str(tmp_path)]
    assert gpu_check.main(words) == 1
    said = capsys.readouterr()
    assert "the map of pages is torn" in said.out
    assert "page mib" in said.out
    assert said.err.splitlines()[-1] == "gpu-check: G1 did not pass"
    written = json.loads((tmp_path / "gpu_check.json").read_text())
    assert written["rehearsal"] is True
    assert [row["status"] for row in written["checks"]] == ["failed", "passed"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_nothing_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "gpu-check: torch.cuda.is_available() is False on this machine. Nothing was checked.\n"
    )


def test_figures_on_one_line() -> None:
    figures = {"rounds": 20, "rows": [1, 2], "events": {"query": 1.5}}
    assert report.flat(figures) == "rounds 20, 2 rows, events: query 1.5"
