# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""G8: records a snapshot of torch's expandable segments, for the check of their simulator."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.vmm.gpu.context import Context, FailedError, SkippedError
from benchmarks.vmm.gpu.settings import allocator_variables

STEPS = 3
NAMES = {"default": "snapshot_default.pickle", "expandable": "snapshot_expandable.pickle"}


def record(kind: str, path: Path) -> dict[str, Any]:
    """Trains on two streams, with the history on from before the first allocation."""
    import torch

    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python", context=None)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 8192), torch.nn.GELU(), torch.nn.Linear(8192, 2048)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    side = torch.cuda.Stream()
    for step in range(STEPS):
        given = torch.randn(1024 + 512 * step, 2048, device="cuda")
        loss = model(given).square().mean()
        loss.backward()
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.current_stream())
            copies = [parameter.grad.clone() for parameter in model.parameters()]
        torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad()
        del copies, loss, given
    torch.cuda.synchronize()
    snapshot = torch.cuda.memory._snapshot()
    part = path.with_suffix(".part")
    part.write_bytes(pickle.dumps(snapshot, protocol=4))
    os.replace(part, path)
    actions = Counter(event["action"] for trace in snapshot["device_traces"] for event in trace)
    expandable = any(segment.get("is_expandable") for segment in snapshot["segments"])
    return {"kind": kind, "file": path.name, "events": dict(actions), "expandable": expandable}


def run(context: Context) -> dict[str, Any]:
    if context.rehearse:
        raise SkippedError("torch records memory on a GPU only")
    from benchmarks.vmm.gpu.child import call_in_process

    found = {}
    for kind, name in NAMES.items():
        found[kind] = call_in_process(
            "benchmarks.vmm.gpu.snapshots:record",
            [kind, str(context.folder / name)],
            allocator_variables(kind),
            context.seconds / len(NAMES),
        )
    if not found["expandable"]["expandable"]:
        raise FailedError("torch was asked for expandable segments, but the snapshot holds none")
    return found
