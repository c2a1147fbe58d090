# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How much memory does a conversion take, and how much more is read than needed?

A Hugging Face folder in bfloat16, half of it embeddings, is rewritten with fused and transposed
weights in one fresh process; the measure is the largest tensor. Two ranks then load half of every
tensor each, along either axis; what they need is each byte once. "read_mib" of a row counts read
calls and misses what is read through mappings of files; "read_of_needed" is what flexckpt counts.
"""

from __future__ import annotations

import shutil
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import flexckpt
from benchmarks.flexckpt.data import (
    HIDDEN,
    Model,
    folder_bytes,
    llama,
    random_state,
    sharded,
    write_hugging_face,
)
from benchmarks.flexckpt.fuse import AOA, fused_shapes
from benchmarks.flexckpt.measure import Contender
from benchmarks.flexckpt.processes import in_fresh_processes, on_ranks, start
from benchmarks.flexckpt.settings import Settings
from benchmarks.flexckpt.warm import warm_up

AXES = (0, 1)
MAPPING = AOA + "\n".join(
    f"model.layers.$LAYER_ID.{name}.weight^T -> model.layers.$LAYER_ID.{name}.weight"
    for name in ("self_attn.o_proj", "mlp.down_proj")
)


def model_of(settings: Settings) -> Model:
    """A quarter of the bytes in each of the two tensors with a row per word."""
    return llama(settings.size, 2, settings.size // 4 // (2 * HIDDEN))


def run(settings: Settings) -> dict[str, Any]:
    shapes = model_of(settings).shapes
    source = settings.workdir / "hf"
    write_hugging_face(source, random_state(model_of(settings), torch.bfloat16))
    rows = in_fresh_processes({"convert": (converts, {})}, settings)
    rows |= on_ranks(loads, settings)
    read = start(bytes_of_loads, settings, ranks=settings.ranks)
    read["convert"] = start(bytes_of_convert, settings)
    largest = 2 * max(map(prod, fused_shapes(shapes).values()))
    needed = 2 * sum(map(prod, shapes.values()))
    return {
        **rows,
        "source_mib": round(folder_bytes(source) / 2**20, 1),
        "largest_tensor_mib": round(largest / 2**20, 1),
        "convert_peak_above_two_largest_mib": round(
            rows["convert"]["peak_rss_mib"] - 2 * largest / 2**20, 1
        ),
        "read_of_needed": {name: round(count / needed, 4) for name, count in read.items()},
    }


def converts(settings: Settings) -> Contender:
    warm_up(settings.workdir / "hf")
    return Contender(lambda: bytes_of_convert(settings))


def bytes_of_convert(settings: Settings) -> int:
    out = settings.workdir / "out"
    shutil.rmtree(out, ignore_errors=True)
    return flexckpt.convert(settings.workdir / "hf", out, aoa=MAPPING).read


def loads(settings: Settings) -> dict[str, Contender]:
    targets = targets_of(settings)
    return {
        f"load_axis_{axis}": Contender(
            lambda axis=axis: flexckpt.load(targets[axis], settings.workdir / "hf")
        )
        for axis in AXES
    }


def bytes_of_loads(settings: Settings) -> dict[str, int]:
    """What all ranks together read."""
    dist.init_process_group("gloo")
    read = {}
    for axis, targets in targets_of(settings).items():
        count = torch.tensor(flexckpt.load(targets, settings.workdir / "hf").stats.read)
        dist.all_reduce(count)
        read[f"load_axis_{axis}"] = int(count)
    return read


def targets_of(settings: Settings) -> dict[int, Any]:
    """This rank's half of every tensor, along each axis."""
    mesh = init_device_mesh("cpu", (settings.ranks,))
    state = random_state(model_of(settings), torch.bfloat16)
    return {axis: sharded(state, mesh, axis) for axis in AXES}
