# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A program of its own: trains a small model on the CPU hook, and prints what was seen as JSON."""

import json
import sys
from pathlib import Path

import torch

from vmm import observe, torch_hooks
from vmm.observe.curves import curves


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    torch_hooks.enable("cpu", device_bytes=256 << 20)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    leaks: list[torch.Tensor] = []
    with observe.record(stacks="python") as recorder, observe.region("step") as step:
        with observe.region("forward") as forward:
            loss = model(torch.ones(32, 64)).square().sum()
        with observe.region("backward") as backward:
            loss.backward()
        leaks.append(torch.zeros(1000, 1000))
        del loss
    recording = recorder.recording
    assert recording is not None
    recording.to_torch_snapshot(folder / "run.pickle")
    recording.save(folder / "run.vmmtrace")
    totals = curves(recording.trace.validate())
    enabled = torch_hooks.enabled()
    assert enabled is not None
    largest = max(step.survivors, key=lambda block: block.size)
    answer = {
        "allocs": [r.counts.allocs for r in (step, forward, backward)],
        "net": step.counts.net,
        "live": [step.counts.live_before, step.counts.live_after],
        "curve_end": int(totals.allocated[-1]),
        "stats_end": enabled.stats()["allocated_bytes.all.current"],
        "largest": [largest.requested, largest.tag, *largest.stack[0]],
        "gradients": sum(p.numel() * 4 for p in model.parameters()),
        "backward_net": backward.counts.net,
        "tags": sorted(row.tag for row in observe.top()),
        "summary": observe.summary(),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
