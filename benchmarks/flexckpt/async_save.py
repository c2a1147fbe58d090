# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""For how long does training stand still while a checkpoint is saved in the background?

Two ranks. "async" rows time the call alone, beside whole synchronous saves; the background is
waited for before the next round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import llama, random_state, sharded
from benchmarks.flexckpt.measure import Contender
from benchmarks.flexckpt.peers import dcp
from benchmarks.flexckpt.processes import on_ranks
from benchmarks.flexckpt.reshard import fresh
from benchmarks.flexckpt.settings import Settings


def run(settings: Settings) -> dict[str, Any]:
    rows = on_ranks(saves, settings)
    ways = {"ours_async": "ours_sync", "ours_fork": "ours_sync", "dcp_async": "dcp_sync"}
    blocked = {
        name: round(rows[name]["seconds"] / rows[whole]["seconds"], 4)
        for name, whole in ways.items()
    }
    return {**rows, "blocked_share_of_synchronous": blocked}


def saves(settings: Settings) -> dict[str, Contender]:
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = sharded(random_state(llama(settings.size, 4), torch.float32), mesh, 0)
    place = settings.workdir / "saved"
    group = dist.new_group(backend="gloo")
    running: list[Callable[[], Any]] = []

    def ours() -> None:
        running.append(flexckpt.save(state, place, async_=True).wait)

    def forked() -> None:
        running.append(flexckpt.save(state, place, async_="fork").wait)

    def theirs() -> None:
        running.append(dcp.async_save(state, place, group).result)

    def settle() -> None:
        while running:
            running.pop()()
        fresh(place)

    return {
        "ours_sync": Contender(lambda: flexckpt.save(state, place), settle),
        "ours_async": Contender(ours, settle),
        "ours_fork": Contender(forked, settle),
        "dcp_sync": Contender(lambda: dcp.save(state, place), settle),
        "dcp_async": Contender(theirs, settle),
    }
