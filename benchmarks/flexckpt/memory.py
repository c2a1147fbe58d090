# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How much memory does a conversion take, and how much more is read than needed?

A Hugging Face folder in bfloat16 is rewritten with fused and transposed weights in one fresh
process; the measure is the largest tensor of the result. Two ranks then load half of every tensor
each, along either axis; what they need is each byte once.
"""

from __future__ import annotations

import shutil
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import folder_bytes, llama, random_state, sharded, write_hugging_face
from benchmarks.flexckpt.fuse import AOA, fused_shapes
from benchmarks.flexckpt.measure import Contender
from benchmarks.flexckpt.processes import in_fresh_processes, on_ranks
from benchmarks.flexckpt.settings import Settings

TRANSPOSED = "\n".join(
    f"model.layers.$LAYER_ID.{name}.weight^T -> model.layers.$LAYER_ID.{name}.weight"
    for name in ("self_attn.o_proj", "mlp.down_proj")
)


def run(settings: Settings) -> dict[str, Any]:
    shapes = llama(settings.size, 2).shapes
    source = settings.workdir / "hf"
    write_hugging_face(source, random_state(llama(settings.size, 2), torch.bfloat16))
    rows = in_fresh_processes({"convert": (converts, {})}, settings)
    rows |= on_ranks(loads, settings)
    largest = 2 * max(map(prod, fused_shapes(shapes).values()))
    needed = 2 * sum(map(prod, shapes.values()))
    return {
        **rows,
        "source_mib": round(folder_bytes(source) / 2**20, 1),
        "largest_tensor_mib": round(largest / 2**20, 1),
        "convert_peak_over_two_largest_mib": round(
            rows["convert"]["peak_rss_mib"] - 2 * largest / 2**20, 1
        ),
        "read_of_needed": {
            name: round(row["read_mib"] * 2**20 / needed, 4) for name, row in rows.items()
        },
    }


def converts(settings: Settings) -> Contender:
    out = settings.workdir / "out"
    shutil.rmtree(out, ignore_errors=True)
    flexckpt.read_index(settings.workdir / "hf")  # imports are not what is measured
    return Contender(lambda: flexckpt.convert(settings.workdir / "hf", out, aoa=AOA + TRANSPOSED))


def loads(settings: Settings) -> dict[str, Contender]:
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = random_state(llama(settings.size, 2), torch.bfloat16)
    targets = {axis: sharded(state, mesh, axis) for axis in (0, 1)}
    del state
    dist.barrier()
    return {
        f"load_axis_{axis}": Contender(
            lambda axis=axis: flexckpt.load(targets[axis], settings.workdir / "hf")
        )
        for axis in (0, 1)
    }
