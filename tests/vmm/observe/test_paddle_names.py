# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The tool under Paddle's names, on a run whose blocks are known."""

import builtins
from pathlib import Path
from typing import Any

import pytest

from vmm import Allocator, Invalid, Unsupported
from vmm.observe.api import MemoryAnalysisTool as Tool
from vmm.observe.api import Recording, record

MIB = 1 << 20


def run() -> tuple[Allocator, Recording, list[int]]:
    """|3 free|4 live|5 free|... and the recording of all but the first."""
    one = Allocator(driver="null", device_bytes=1 << 30, grow=2 * MIB)
    first = one.alloc(3 * MIB)
    with record(100, allocator=one) as recorder:
        second, third, last = one.alloc(4 * MIB), one.alloc(5 * MIB), one.alloc(2 * MIB)
        one.free(first)
        one.free(third)
    assert recorder.recording is not None
    return one, recorder.recording, [first, second, third, last]


def test_blocks() -> None:
    one, _, (first, second, third, last) = run()
    (free,) = Tool.vmm_free_block_info(allocator=one)
    assert free == [(3 * MIB, first), (5 * MIB, third)]
    assert Tool.vmm_all_block_info(allocator=one) == [
        [
            (3 * MIB, first, True),
            (4 * MIB, second, False),
            (5 * MIB, third, True),
            (2 * MIB, last, False),
        ]
    ]
    assert Tool.vmm_max_free_size(allocator=one) == (5 * MIB, 5 * MIB)
    assert Tool.vmm_max_free_size(n=2, allocator=one) == (5 * MIB, 8 * MIB)
    assert Tool.vmm_max_free_size(n=9, allocator=one) == (5 * MIB, 8 * MIB)
    assert "Blocks by size" in Tool.memory_summary(allocator=one)


def test_nothing_free() -> None:
    one = Allocator(driver="null", device_bytes=1 << 30)
    assert Tool.vmm_max_free_size(allocator=one) == (0, 0)
    with pytest.raises(Invalid, match="n: must be a whole number from 1, but is 0"):
        Tool.vmm_max_free_size(n=0, allocator=one)


def test_table(tmp_path: Path) -> None:
    _, recording, _ = run()
    path = tmp_path / "table.tsv"
    Tool.allocate_record_table(recording, path)
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    assert lines[0] == ["allocator", "action", "sequence", "size", "allocated", "reserved"]
    rows = [(action, int(at), int(size), int(live)) for _, action, at, size, live, _ in lines[1:]]
    assert rows == [
        ("Alloc", 0, 4 * MIB, 7 * MIB),
        ("Alloc", 1, 5 * MIB, 12 * MIB),
        ("Alloc", 2, 2 * MIB, 14 * MIB),
        ("Free", 3, 3 * MIB, 11 * MIB),
        ("Free", 4, 5 * MIB, 6 * MIB),
    ]
    assert [int(line[5]) for line in lines[1:]] == [8 * MIB, 12 * MIB, 14 * MIB, 14 * MIB, 14 * MIB]


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    _, recording, _ = run()
    path = tmp_path / "plot.png"
    Tool.allocate_record_plot(recording, path)
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_plot_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, recording, _ = run()
    real = builtins.__import__

    def refuse(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(Unsupported, match=r"paddle-on-torch\[plot\]"):
        Tool.allocate_record_plot(recording, tmp_path / "plot.png")
    assert list(tmp_path.iterdir()) == []
