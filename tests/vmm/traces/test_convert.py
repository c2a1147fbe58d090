# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm convert`` as its users call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.vmm.traces.test_logs import STALLOC
from tests.vmm.traces.test_snapshots import lite
from vmm.cli.main import main
from vmm.sim import trace_file


def test_a_log_becomes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(STALLOC)
    out = tmp_path / "log.vmmtrace.gz"
    assert main(["convert", str(tmp_path / "log"), str(out)]) == 0
    assert capsys.readouterr().out == "8 events written to log.vmmtrace.gz\n"
    assert trace_file.read(out).bytes.tolist() == [77, 0, 4096, 100, 0, 4096, 8192, 77]


def test_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_bytes(STALLOC)
    assert main(["convert", "--info", str(tmp_path / "log")]) == 0
    lines = dict(line.split(":", 1) for line in capsys.readouterr().out.splitlines())
    values = {name.strip(): value.strip() for name, value in lines.items()}
    assert values == {
        "source": "STAlloc trace",
        "events": "8",
        "alloc": "4",
        "free": "2",
        "step mark": "2",
        "peak, requested": "8.17 KiB (8369)",
        "peak, by 512 B": "9.00 KiB (9216)",
        "live at the end": "8.10 KiB (8292) in 2",
        "largest request": "8.00 KiB (8192)",
        "median request": "2.05 KiB (2098)",
        "streams": "2",
        "pools": "1",
        "steps": "2",
        "duration": "0.000090 s",
        "note": "2 zero-size requests left out",
    }


def test_the_verdict_and_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "snapshot.json"
    data = lite()
    data["events"] = data["events"][:1]
    path.write_text(json.dumps(data))
    assert main(["convert", "--exact", str(path)]) == 0
    assert capsys.readouterr().out == (
        "EXACT: 1 events, 1 allocations and 0 new segments as predicted, 2097152 bytes reserved at"
        " the end\n"
    )
    data["events"].insert(0, ["segment_alloc", 0, 2097152, 0])
    data["events"].insert(0, ["alloc", 512, 8, 0])
    path.write_text(json.dumps(data))
    assert main(["convert", "--exact", str(path)]) == 1
    assert capsys.readouterr().out.startswith("MISMATCH at event 0: ")


def test_settings_for_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    block = [0, 5120, 4097, "active_allocated"]
    rest = [5120, 2097152 - 5120, 0, "inactive"]
    data = lite()
    data["segments_at_end"][0]["blocks"] = [block, rest]
    data["events"] = [["alloc", 0, 4097, 0]]
    path = tmp_path / "snapshot.json"
    path.write_text(json.dumps(data))
    wanted = ["--settings", "roundup_power2_divisions:4"]
    assert main(["convert", "--exact", str(path), *wanted]) == 0
    assert main(["convert", "--exact", str(path), "--settings", "x:4"]) == 1
    assert "'x' is no setting of torch's allocator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["IN"], "there is nothing to do: name the file OUT"),
        (["IN", "OUT"], "its name ends in .vmmtrace or .vmmtrace.gz"),
        (["IN", "OUT", "--exact"], "--exact writes no file and no summary"),
        (["IN", "--info", "--settings", "backend:native"], "--settings is for --exact"),
        (["IN", "--info", "--device", "3"], "nothing is recorded of device 3; there are: 0"),
    ],
)
def test_wrong_usage_is_told(
    words: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in").write_text(json.dumps(lite()))
    paths = {"IN": str(tmp_path / "in"), "OUT": str(tmp_path / "out.txt")}
    assert main(["convert", *(paths.get(word, word) for word in words)]) == 1
    assert text in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
