# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm generate`` as its users call it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vmm.cli.main import main
from vmm.sim import suite, trace_file
from vmm.sim.generators.registry import generate


def test_a_workload_with_parameters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "moe.vmmtrace.gz"
    words = ["--seed", "3", "--set", "layers=1", "--set", "grouped=true", "--set", "flops=1e15"]
    assert main(["generate", "moe", str(out), *words]) == 0
    expected = generate("moe", seed=3, layers=1, grouped=True, flops=1e15)
    assert capsys.readouterr().out == f"{len(expected)} events written to moe.vmmtrace.gz\n"
    found = trace_file.read(out)
    for name, values in expected.columns.items():
        np.testing.assert_array_equal(found.columns[name], values)
    assert found.header["parameters"] == expected.header["parameters"]


def test_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "SUITE", {"a": ("robson", {"steps": 2}), "b": ("robson", {})})
    folder = tmp_path / "new" / "folder"
    assert main(["generate", "--suite", str(folder)]) == 0
    assert [each.name for each in sorted(folder.iterdir())] == ["a.vmmtrace.gz", "b.vmmtrace.gz"]
    found = trace_file.read(folder / "a.vmmtrace.gz")
    assert (found.header["name"], found.steps) == ("a", 2)


def test_the_list_has_every_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--list"]) == 0
    out = capsys.readouterr().out
    assert "  in_flight     4           microbatches whose activations are held at once\n" in out
    assert "  memory_rate   2.2e+12     bytes per second to and from device memory\n" in out
    assert "  moe-grouped     moe             grouped=true\n" in out
    assert all(f"  {name} " in out for name in suite.SUITE)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "generate takes one of NAME OUT, --suite DIR and --list"),
        (["moe"], "there is nowhere to write: name the file OUT"),
        (["gan", "x.vmmtrace"], "there is no workload 'gan'; known are moe, varlen"),
        (["moe", "x.txt", "--set", "layers=1"], "OUT is 'x.txt'; its name ends in .vmmtrace"),
        (["moe", "x.vmmtrace", "--set", "layers"], "--set takes KEY=VALUE, not 'layers'"),
        (["moe", "x.vmmtrace", "--set", "layers=x"], "layers is 'x'; it takes an integer"),
        (["moe", "x.vmmtrace", "--set", "grouped=3"], "grouped is '3'; it takes true or false"),
        (["moe", "x.vmmtrace", "--set", "y=3"], "there is no parameter 'y'; known are call_ns"),
        (["moe", "x.vmmtrace", "--seed", "1", "--set", "seed=2"], "the seed is given twice"),
        (["--list", "--seed", "1"], "--list takes no parameters"),
        (["--suite", "x", "--set", "layers=1"], "--set is for one workload"),
    ],
)
def test_refusals(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *words]) == 1
    assert capsys.readouterr().err.startswith(f"vmm generate: {message}")
