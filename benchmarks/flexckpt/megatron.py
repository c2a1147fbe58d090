# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A sharded state is saved and loaded: beside Megatron-Core's dist_checkpointing.

Two ranks, as in `reshard`. MEGATRON_PYTHON names a Python that has megatron-core beside what this
project needs. Ours reads the files of Megatron, too.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import llama, random_state, sharded
from benchmarks.flexckpt.measure import Contender, ratios
from benchmarks.flexckpt.peers import megatron as peer
from benchmarks.flexckpt.processes import on_ranks
from benchmarks.flexckpt.reshard import fresh
from benchmarks.flexckpt.settings import Settings


def run(settings: Settings) -> dict[str, Any]:
    python = os.environ.get("MEGATRON_PYTHON")
    if not python:
        return {"lacking": "MEGATRON_PYTHON is not set: a Python with megatron-core"}
    result: dict[str, Any] = {}
    for name, axis in (("same", 0), ("transposed", 1)):
        rows = on_ranks(loads, settings, {"axis": axis}, python=python)
        result[f"load_{name}"] = {
            **rows,
            "times_as_long": {
                **ratios(rows, "ours", ["megatron"]),
                **ratios(rows, "ours_from_megatron", ["megatron"]),
            },
        }
    rows = on_ranks(saves, settings, python=python)
    return {**result, "save": {**rows, "times_as_long": ratios(rows, "ours", ["megatron"])}}


def loads(settings: Settings, axis: int) -> dict[str, Contender]:
    """Into targets cut along ``axis``, from files cut along 0; the values are checked once."""
    peer.prepare()
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = random_state(llama(settings.size, 4), torch.float32)
    source = sharded(state, mesh, 0)
    ours, theirs = settings.workdir / f"ours{axis}", settings.workdir / f"megatron{axis}"
    flexckpt.save(source, ours)
    peer.save(source, theirs)
    del source
    targets = sharded(state, mesh, axis, fill=-1)
    want = sharded(state, mesh, axis)
    reading: dict[str, Callable[[], Any]] = {
        "ours": lambda: flexckpt.load(targets, ours),
        "ours_from_megatron": lambda: flexckpt.load(targets, theirs),
        "megatron": lambda: peer.load(targets, theirs),
    }
    for name, load in reading.items():
        for target in targets.values():
            target.to_local().fill_(-1)
        result = load()
        for key, target in targets.items():
            got = result[key] if name == "megatron" else target.to_local()
            if not torch.equal(got, want[key].to_local()):
                raise RuntimeError(f"{name} loads {key} wrong")
    dist.barrier()
    return {name: Contender(load) for name, load in reading.items()}


def saves(settings: Settings) -> dict[str, Contender]:
    """To a place where nothing is yet."""
    peer.prepare()
    mesh = init_device_mesh("cpu", (settings.ranks,))
    source = sharded(random_state(llama(settings.size, 4), torch.float32), mesh, 0)
    place = settings.workdir / "saved"
    ways = {
        "ours": lambda: flexckpt.save(source, place),
        "megatron": lambda: peer.save(source, place),
    }
    return {name: Contender(save, lambda: fresh(place)) for name, save in ways.items()}
