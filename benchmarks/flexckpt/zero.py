# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""DeepSpeed ZeRO-1 and ZeRO-3: to another world size, and to Hugging Face files.

Four ranks write, two load: ours reads the files as they are; DeepSpeed converts to its universal
layout first (rank 0, a command, whose start alone is timed as "start_up"). Conversion to Hugging
Face runs in one fresh process each; ours writes the weights in the dtype in which the checkpoint
has them, zero_to_fp32 the float32 masters. Memory of the command that rank 0 starts is not in its
row.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import flexckpt
from benchmarks.flexckpt.data import check_same, folder_bytes
from benchmarks.flexckpt.measure import Contender, ratios
from benchmarks.flexckpt.peers import deepspeed_engine as peer
from benchmarks.flexckpt.processes import in_fresh_processes, on_ranks, start
from benchmarks.flexckpt.settings import Settings
from benchmarks.flexckpt.warm import warm_up

WRITERS = 4


def run(settings: Settings) -> dict[str, Any]:
    result = {}
    for stage in (1, 3):
        folder = settings.workdir / f"zero{stage}"
        arguments = {"stage": stage, "folder": str(folder)}
        start(write, replace(settings, ranks=WRITERS), arguments, ranks=WRITERS)
        size = folder_bytes(folder)
        rows = on_ranks(resumes, settings, arguments)
        result[f"zero{stage}_4_to_2_ranks"] = {
            **rows,
            "times_as_long": ratios(rows, "ours", ["ds_to_universal_and_load"]),
        }
        rows = in_fresh_processes(
            {"ours": (ours_to_hf, arguments), "zero_to_fp32": (peer_to_hf, arguments)}, settings
        )
        check_same(settings.workdir / "ours_hf", settings.workdir / "peer_hf")
        result[f"zero{stage}_to_hf"] = {
            **rows,
            "written_mib": {
                "ours": round(folder_bytes(settings.workdir / "ours_hf") / 2**20, 1),
                "zero_to_fp32": round(folder_bytes(settings.workdir / "peer_hf") / 2**20, 1),
            },
            "checkpoint_mib": round(size / 2**20, 1),
            "peak_of_checkpoint": {
                name: round(row["peak_rss_mib"] * 2**20 / size, 3) for name, row in rows.items()
            },
            "times_as_long": ratios(rows, "ours", ["zero_to_fp32"]),
        }
    return result


def write(settings: Settings, stage: int, folder: str) -> None:
    """One of the writing ranks."""
    dist.init_process_group("gloo")
    peer.train_and_save(peer.layers_for(settings.size), stage, Path(folder))


def resumes(settings: Settings, stage: int, folder: str) -> dict[str, Contender]:
    """Engines at another world size; after a load and a step both must hold the same values."""
    from flexckpt.interop.deepspeed import load_into_engine

    source, layers = Path(folder), peer.layers_for(settings.size)
    engine = peer.make_engine(layers, stage)
    other = peer.make_engine(layers, stage, universal=True)

    def remove_copy() -> None:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(source / f"{peer.TAG}_universal", ignore_errors=True)

    def convert_and_load() -> None:
        if dist.get_rank() == 0:
            peer.to_universal(source)
        dist.barrier()
        peer.load_universal(other, source)

    ours = Contender(lambda: load_into_engine(engine, source))
    theirs = Contender(convert_and_load, remove_copy)
    for loaded, contender in ((engine, ours), (other, theirs)):
        contender.prepare()
        contender.call()
        peer.train(loaded)
    want = peer.masters(other)
    for name, value in peer.masters(engine).items():
        if not torch.equal(value, want[name]):
            raise RuntimeError(f"{name} differs after the two loads")
    return {
        "ours": ours,
        "ds_to_universal_and_load": theirs,
        "start_up": Contender(start_up if dist.get_rank() == 0 else lambda: None),
    }


def start_up() -> None:
    """What a command of DeepSpeed takes to do nothing."""
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--help"]
    subprocess.run(command, capture_output=True, check=True)


def ours_to_hf(settings: Settings, stage: int, folder: str) -> Contender:
    warm_up(Path(folder))
    out = settings.workdir / "ours_hf"
    shutil.rmtree(out, ignore_errors=True)
    return Contender(lambda: flexckpt.convert(folder, out, to="hf"))


def peer_to_hf(settings: Settings, stage: int, folder: str) -> Contender:
    import deepspeed.utils.zero_to_fp32  # noqa: F401  (not timed)

    out = settings.workdir / "peer_hf"
    shutil.rmtree(out, ignore_errors=True)
    return Contender(lambda: peer.to_fp32(Path(folder), out))
