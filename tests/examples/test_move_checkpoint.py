# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The tour of layouts ends where it began, and notices when it does not."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import flexckpt
from tests.house.project import ROOT


@pytest.mark.dist
def test_every_bit_comes_back(tmp_path):
    command = [sys.executable, str(ROOT / "examples" / "move_checkpoint.py")]
    command += ["--layers", "3", "--hidden", "48", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "All 57 tensors are bitwise what they were." in done.stdout
    assert "experts.{0..3}.w1.weight" in done.stdout

    # What lies on the disk says so, too: rank 1 of 2 holds the second heads and experts' halves.
    out = tmp_path / "out"
    source = load_file(out / "hugging_face" / "model.safetensors")
    index = json.loads((out / "tensor_parallel" / "index.json").read_text())
    name = "model.layers.2.self_attn.qkv_proj.weight"
    shards = index["tensors"][name]["weight"]["shards"]
    assert sorted(shard[2] for shard in shards) == [[0, 0], [36, 0]]
    parts = [source[f"model.layers.2.self_attn.{one}_proj.weight"] for one in "qkv"]
    want = torch.cat([part.chunk(2)[rank] for rank in range(2) for part in parts])
    got = torch.empty_like(want)
    flexckpt.load(
        {name: got}, out / "tensor_parallel", strict={"unexpected": "ignore", "missing": "error"}
    )
    assert torch.equal(got, want)
