# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recordings of real training: the fragmentation that independent prototypes of the same
allocators had measured, 1 - peak of what is live / peak of what is held."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

from vmm.sim.readers import read_any

FOLDER = os.environ.get("VMM_TRACES")

pytestmark = pytest.mark.skipif(
    not FOLDER, reason="VMM_TRACES does not name a folder with recordings"
)

# Percent, one number for each model.
MODELS = (
    "torch_default:TorchDefault",
    "torch_expandable:TorchExpandable",
    "paddle_auto_growth:PaddleAutoGrowth",
    "paddle_vmm:PaddleVmm",
)
MEASURED = {
    "lm_full_step_ctx128.json.gz": (10.3, 1.3, 9.7, 1.3),
    "lm_full_step_ctx512.json.gz": (13.0, 1.5, 12.9, 1.2),
    "notebook_finetune.json.gz": (9.5, 0.7, 6.4, 0.4),
}


@pytest.mark.parametrize("number", range(len(MODELS)), ids=MODELS)
@pytest.mark.parametrize("file", MEASURED)
def test_fragmentation_is_what_was_measured(file: str, number: int) -> None:
    module, _, name = MODELS[number].partition(":")
    model = getattr(importlib.import_module(f"vmm.sim.models.{module}"), name)(None)
    path = Path(FOLDER or "") / file
    if not path.exists():
        pytest.skip(f"the folder of VMM_TRACES has no {file}")
    trace = read_any(path)
    live = held = 0
    rows = zip(
        trace.op.tolist(),
        trace.id.tolist(),
        trace.bytes.tolist(),
        trace.stream.tolist(),
        strict=True,
    )
    for op, id, size, stream in rows:
        if op == ord("a"):
            model.alloc(id, size, stream)
            live, held = max(live, model.live), max(held, model.reserved)
        elif op == ord("f"):
            model.free(id)
    assert round(100 * (1 - live / held), 1) == MEASURED[file][number]
