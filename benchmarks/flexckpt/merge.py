# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A checkpoint that two ranks wrote becomes a Hugging Face folder, in one process.

Ours from our files and from those of torch DCP; DCP consolidates the safetensors files with parts
that its own writer makes. Paddle joins if PADDLE_PYTHON names a Python that has it.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import check_same, folder_bytes, llama, random_state, sharded
from benchmarks.flexckpt.measure import Contender, ratios
from benchmarks.flexckpt.peers import dcp, paddle_merge
from benchmarks.flexckpt.processes import in_fresh_processes, start
from benchmarks.flexckpt.settings import Settings
from benchmarks.flexckpt.warm import warm_up

OURS = {"ours": "ours", "ours_from_dcp": "dcp"}  # row -> folder that it reads
FILES = 2  # of the merged checkpoint


def run(settings: Settings) -> dict[str, Any]:
    start(write, settings, ranks=settings.ranks)
    ways: dict[str, Any] = {name: (ours, {"source": source}) for name, source in OURS.items()}
    rows = in_fresh_processes(ways | {"dcp": (theirs, {})}, settings)
    for source in OURS.values():
        check_same(settings.workdir / f"merged_{source}", settings.workdir / "merged_by_dcp")
    peers = ["dcp"]
    if python := os.environ.get("PADDLE_PYTHON"):
        shapes = llama(settings.size, 2).shapes
        rows["paddle"] = paddle_merge.rows(python, settings, shapes, "bfloat16", axis=0)
        peers.append("paddle")
    times = {**ratios(rows, "ours", peers), **ratios(rows, "ours_from_dcp", peers)}
    lacking = {} if python else {"paddle": "PADDLE_PYTHON is not set: a Python with Paddle 3.3"}
    return {**rows, "times_as_long": times, "lacking": lacking}


def write(settings: Settings) -> None:
    """One of the ranks that save in every layout."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = sharded(random_state(llama(settings.size, 2), torch.bfloat16), mesh, 0)
    flexckpt.save(state, settings.workdir / "ours")
    dcp.save(state, settings.workdir / "dcp")
    dcp.save_hugging_face_shards(state, settings.workdir / "dcp_hf")
    dist.barrier()


def ours(settings: Settings, source: str) -> Contender:
    warm_up(settings.workdir / source)
    out = settings.workdir / f"merged_{source}"
    shutil.rmtree(out, ignore_errors=True)
    size = folder_bytes(settings.workdir / "dcp") // FILES + 1
    return Contender(lambda: flexckpt.convert(settings.workdir / source, out, shard_size=size))


def theirs(settings: Settings) -> Contender:
    out = settings.workdir / "merged_by_dcp"
    shutil.rmtree(out, ignore_errors=True)
    names = list(llama(settings.size, 2).shapes)
    files = {name: 1 + k * FILES // len(names) for k, name in enumerate(names)}
    return Contender(lambda: dcp.consolidate(settings.workdir / "dcp_hf", out, files))
