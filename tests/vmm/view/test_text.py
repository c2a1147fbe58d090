# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The terminal mode and the command."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from benchmarks.vmm.synthetic_recording import synthetic_recording
from tests.vmm.view.reference import free_runs, walk
from vmm.cli.main import main
from vmm.sim.trace import from_events
from vmm.sim.trace_file import write
from vmm.view.from_trace import from_trace
from vmm.view.text import print_diff, print_recording
from vmm.view.words import both_bytes, duration, short_bytes, sparkline

TRACE = synthetic_recording(1500, seed=2, live=40)
OTHER = synthetic_recording(1800, seed=9, live=50)


def numbers(text: str) -> set[int]:
    return {int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*", text)}


def test_the_text_has_the_numbers_of_the_walk() -> None:
    _, live, held = walk(TRACE)
    peak = live.index(max(live))
    out = io.StringIO()
    print_recording(from_trace(TRACE, "one.vmmtrace"), out)
    text = out.getvalue()
    assert {max(live), max(held), live[-1], peak, len(TRACE)} <= numbers(text)
    runs = free_runs(walk(TRACE, peak)[0])
    row = next(line for line in text.splitlines() if line.startswith("1-10M"))
    assert int(row.split()[1]) == sum(1 << 20 <= run < 10 << 20 for run in runs)
    assert "attention" in text
    assert "Live at the peak by stack" in text


def test_the_difference_as_text() -> None:
    out = io.StringIO()
    print_diff(from_trace(TRACE, "one"), from_trace(OTHER, "two"), out)
    peaks = {max(walk(TRACE)[1]), max(walk(OTHER)[1])}
    assert peaks <= numbers(out.getvalue())


def test_hostile_names_are_not_markup() -> None:
    trace = synthetic_recording(800, seed=2, live=20)
    names = [f"[bold red]{i}[/] [link=x]" for i in range(8)]
    trace.header["tags"] = ["", *names[1:]]
    out = io.StringIO()
    print_recording(from_trace(trace, "[red]x[/]"), out)
    assert all(name in out.getvalue() for name in names[1:])
    assert "[red]x[/]" in out.getvalue()


def test_a_trace_without_addresses_and_one_without_events() -> None:
    out = io.StringIO()
    print_recording(from_trace(from_events([(0, "a", 0, 700)]), "x"), out)
    assert "700 B" in out.getvalue()
    assert "no addresses" in out.getvalue()
    assert "Free runs" not in out.getvalue()
    out = io.StringIO()
    print_recording(from_trace(from_events([]), "x"), out)
    assert "no events" in out.getvalue()
    print_diff(from_trace(from_events([]), "x"), from_trace(TRACE, "y"), out)


def test_words() -> None:
    assert [short_bytes(n) for n in (0, 1023, 1024, 1536, -(10 << 20), 5 << 40)] == [
        *("0 B", "1023 B", "1.00 KiB", "1.50 KiB", "-10.0 MiB", "5.00 TiB"),
    ]
    assert both_bytes(1 << 20) == "1.00 MiB (1,048,576 B)"
    assert [duration(n) for n in (0, 999, 1500, 2_000_000, 3 * 10**9)] == [
        *("0 ns", "999 ns", "1.5 us", "2 ms", "3 s"),
    ]
    import numpy as np

    assert sparkline(np.array([0, 1, 4, 8]), 8, 4) == " ▁▄█"
    assert sparkline(np.arange(100), 99, 10)[-1] == "█"


def test_the_command_writes_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.vmmtrace", tmp_path / "b.vmmtrace.gz"
    write(first, TRACE)
    write(second, OTHER)
    out = tmp_path / "page.html"
    assert main(["view", str(first), "--diff", str(second), "--out", str(out)]) == 0
    assert out.read_text().count('class="recording"') == 2
    assert f"{len(TRACE) + len(OTHER):,} events" in capsys.readouterr().out
    assert main(["view", str(first), "--text", "--range", "100:200"]) == 0
    assert "events 100 to 199" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("a.vmmtrace", "b.vmmtrace.gz", "page.html"),
    ]


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.vmmtrace"
    path.write_text("nonsense\n")
    out = tmp_path / "page.html"
    assert main(["view", str(path), "--out", str(out)]) == 1
    assert main(["view", str(tmp_path / "none"), "--out", str(out)]) == 1
    write(path, TRACE)
    assert main(["view", str(path), "--range", "x", "--out", str(out)]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 3
    assert "a.vmmtrace" in errors[0]
    assert "a range is A:B" in errors[2]
    assert not out.exists()


def test_a_device_is_refused_where_the_file_names_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "t.vmmtrace", TRACE)
    assert main(["view", str(tmp_path / "t.vmmtrace"), "--text", "--device", "3"]) == 1
    assert "device 3 was chosen, but this format names no devices" in capsys.readouterr().err
