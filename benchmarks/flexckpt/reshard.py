# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A sharded state is saved and loaded, in the same layout and across: beside torch DCP.

Two ranks, DTensors of float32 cut along axis 0; "same" loads into the same cut, "transposed" into
one along axis 1. "plain" reads the same files into memory that is there already. The page cache is
warm.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import llama, random_state, sharded, wrong
from benchmarks.flexckpt.measure import Contender, ratios
from benchmarks.flexckpt.peers import dcp, plain
from benchmarks.flexckpt.processes import on_ranks
from benchmarks.flexckpt.settings import Settings


def run(settings: Settings) -> dict[str, Any]:
    """Loads in both layouts, then saves."""
    result: dict[str, Any] = {}
    for name, axis in (("same", 0), ("transposed", 1)):
        rows = on_ranks(loads, settings, {"axis": axis})
        result[f"load_{name}"] = {
            **rows,
            "times_as_long": ratios(rows, "ours", ("dcp", "plain")),
            "times_as_long_from_dcp": ratios(rows, "ours_from_dcp", ("dcp", "plain")),
        }
    rows = on_ranks(saves, settings)
    times = {
        **ratios(rows, "ours", ("dcp", "dcp_without_fsync")),
        **ratios(rows, "ours_without_checksums", ("dcp", "dcp_without_fsync")),
    }
    return {**result, "save": {**rows, "times_as_long": times}}


def fresh(folder: Path) -> None:
    """Nothing at this place, and nothing of earlier rounds still on its way to the disk."""
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)
        os.sync()
    dist.barrier()


def loads(settings: Settings, axis: int) -> dict[str, Contender]:
    """Into targets cut along ``axis``, from files cut along 0; the values are checked once."""
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = random_state(llama(settings.size, 4), torch.float32)
    source = sharded(state, mesh, 0)
    ours, theirs = settings.workdir / f"ours{axis}", settings.workdir / f"dcp{axis}"
    flexckpt.save(source, ours)
    dcp.save(source, theirs)
    del source
    targets = sharded(state, mesh, axis, fill=-1)
    reading = {
        "ours": lambda: flexckpt.load(targets, ours),
        "ours_from_dcp": lambda: flexckpt.load(targets, theirs),
        "dcp": lambda: dcp.load(targets, theirs),
    }
    for name, load in reading.items():
        for target in targets.values():
            target.to_local().fill_(-1)
        load()
        if bad := wrong(targets, state, mesh, axis):
            raise RuntimeError(f"{name} loads {bad[0]} wrong, and {len(bad) - 1} more")
    files = plain.share(ours, dist.get_rank(), settings.ranks)
    dist.barrier()
    return {
        **{name: Contender(load) for name, load in reading.items()},
        "plain": Contender(files.read),
    }


def saves(settings: Settings) -> dict[str, Contender]:
    """To a place where nothing is yet. Ours waits for the disk, DCP does so unless told not to."""
    mesh = init_device_mesh("cpu", (settings.ranks,))
    source = sharded(random_state(llama(settings.size, 4), torch.float32), mesh, 0)
    place = settings.workdir / "saved"
    ways = {
        "ours": lambda: flexckpt.save(source, place),
        "ours_without_checksums": lambda: flexckpt.save(source, place, checksums=False),
        "dcp": lambda: dcp.save(source, place),
        "dcp_without_fsync": lambda: dcp.save(source, place, sync=False),
    }
    return {name: Contender(save, lambda: fresh(place)) for name, save in ways.items()}
