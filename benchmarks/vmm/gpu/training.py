# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G7: a small training run has the same losses, bit for bit, on torch's allocator and on ours."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError

STEPS = 12


def losses(device: str, ours: bool, steps: int = STEPS) -> list[float]:
    """Trains a two-layer transformer on lengths that change, so that memory does as well."""
    if ours:
        from vmm.torch_hooks.enable import enable

        enable(device, **({"device_bytes": "4GiB"} if device == "cpu" else {}))
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    width = 256 if device == "cuda" else 64
    layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.Sequential(
        torch.nn.Embedding(1000, width),
        torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        torch.nn.Linear(width, 1000),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(1)
    found = []
    for step in range(steps):
        length = (64, 37, 91, 128)[step % 4]
        tokens = torch.randint(1000, (8, length + 1), generator=random).to(device)
        scores = model(tokens[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def in_process(device: str, ours: bool) -> list[float]:
    """Each run has a process of its own: torch's CUDA allocator cannot be changed back."""
    words = [sys.executable, "-m", "benchmarks.vmm.gpu.training", device, str(int(ours))]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise FailedError(
            f"the run {'with' if ours else 'without'} ours broke: {done.stderr[-500:]}"
        )
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(context: Context) -> dict[str, Any]:
    device = "cpu" if context.rehearse else "cuda"
    theirs, ours = in_process(device, False), in_process(device, True)
    if theirs != ours:
        step = next(n for n, pair in enumerate(zip(theirs, ours, strict=True)) if len({*pair}) > 1)
        raise FailedError(f"step {step}: loss {ours[step]!r} with ours, {theirs[step]!r} without")
    if not theirs[-1] < theirs[0]:
        raise FailedError(f"the loss did not fall: {theirs[0]} to {theirs[-1]}")
    return {"steps": len(theirs), "first_loss": theirs[0], "last_loss": theirs[-1]}


if __name__ == "__main__":
    print(json.dumps(losses(sys.argv[1], sys.argv[2] == "1")))
