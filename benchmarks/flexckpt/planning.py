# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How long until a load knows what to do? Nothing is read or moved.

"moe": a model of 61 layers with 256 experts, 50,000 tensors with TP 2; experts are transposed, gate
and up fused, and all of a layer put into one tensor; the program is compiled, and one of 64 ranks
with its part of the experts plans. "job": 50,000 tensors that 512 ranks hold, and what one of 512
ranks of another layout plans, with tensor and pipeline parallelism, and with every tensor cut over
all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from benchmarks.flexckpt.measure import Contender
from benchmarks.flexckpt.processes import in_fresh_processes
from benchmarks.flexckpt.settings import Settings
from benchmarks.flexckpt.warm import warm_up
from flexckpt.boxes import shard_regions
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.lang import compile_program
from flexckpt.model import TensorSpec, dtype_name
from flexckpt.plan.planner import make_plan
from flexckpt.plan.targets import Target

DTYPE = torch.bfloat16
LAYERS, EXPERTS, EXPERT_RANKS = 61, 256, 64
HIDDEN, INNER = 1024, 512
TENSORS, RANKS = 50_000, 512

E, T = "model.layers.$LAYER_ID.mlp.experts.$EXPERT_ID", "temporary.$LAYER_ID.$EXPERT_ID"
MOE = f"""
{E}.gate_proj.weight^T, {E}.up_proj.weight^T -> {T}.gate_up, axis=1
temporary.$LAYER_ID.*.gate_up -> model.layers.$LAYER_ID.mlp.gate_up_proj, axis=0
{E}.down_proj.weight^T -> {T}.down
temporary.$LAYER_ID.*.down -> model.layers.$LAYER_ID.mlp.down_proj, axis=0
"""

Box = tuple[tuple[int, ...], tuple[int, ...]]


def run(settings: Settings) -> dict[str, Any]:
    ways: dict[str, Any] = {
        "moe_compile": (moe_compile, {}),
        "moe_compile_and_plan": (moe_plan, {}),
        "job_plan_tensor_parallel": (job_plan, {"everywhere": False}),
        "job_plan_cut_over_all": (job_plan, {"everywhere": True}),
    }
    return {
        **in_fresh_processes(ways, settings),
        "moe_tensors": len(moe_source().entries),
        "job_tensors": TENSORS,
        "job_ranks": RANKS,
    }


def entry(key: str, shape: tuple[int, ...], boxes: list[Box], files: list[int]) -> Entry:
    shards = [
        Stored(offset, part, None, file, 0)
        for (offset, part), file in zip(boxes, files, strict=True)
    ]
    return Entry(key, "weight", shape, DTYPE, shards)


def rows(shape: tuple[int, ...], parts: int) -> list[Box]:
    """The boxes of a tensor that is cut along its first axis."""
    step = -(-shape[0] // parts)
    starts = range(0, shape[0], step)
    return [
        ((at, *(0,) * (len(shape) - 1)), (min(step, shape[0] - at), *shape[1:])) for at in starts
    ]


def index_of(entries: list[Entry], files: int) -> SourceIndex:
    paths = [Path(f"/nowhere/{number}") for number in range(files)]
    by_key = {(one.key, one.state): one for one in entries}
    return SourceIndex("flexckpt", Path("/nowhere"), paths, by_key)


def moe_source() -> SourceIndex:
    """Experts as Hugging Face names them, each cut in two, and what else a layer has."""
    entries = []
    for layer in range(LAYERS):
        here = f"model.layers.{layer}"
        shapes = {
            f"{here}.mlp.experts.{expert}.{name}_proj.weight": shape
            for expert in range(EXPERTS)
            for name, shape in (
                ("gate", (INNER, HIDDEN)),
                ("up", (INNER, HIDDEN)),
                ("down", (HIDDEN, INNER)),
            )
        }
        shapes |= {f"{here}.other.{number}.weight": (HIDDEN,) for number in range(52)}
        entries += [entry(key, shape, rows(shape, 2), [0, 1]) for key, shape in shapes.items()]
    return index_of(entries, 2)


def moe_destination(index: SourceIndex) -> dict[str, TensorSpec]:
    """The fused model, its experts cut over the ranks."""
    out = {
        entry.key: TensorSpec(entry.shape, DTYPE)
        for entry in index.entries.values()
        if ".other." in entry.key
    }
    for layer in range(LAYERS):
        for name, shape in (
            ("gate_up_proj", (EXPERTS * HIDDEN, 2 * INNER)),
            ("down_proj", (EXPERTS * INNER, HIDDEN)),
        ):
            boxes = tuple(rows(shape, EXPERT_RANKS))
            out[f"model.layers.{layer}.mlp.{name}"] = TensorSpec(shape, DTYPE, boxes)
    return out


def target(key: str, shape: tuple[int, ...], box: Box) -> Target:
    return Target(key, "weight", shape, dtype_name(DTYPE), tuple(shard_regions(*box)))


def moe_compile(settings: Settings) -> Contender:
    source = moe_source()
    dest = moe_destination(source)
    return Contender(lambda: compile_program(MOE, source.specs(), dest), warm_up)


def moe_plan(settings: Settings) -> Contender:
    """One of the ranks: its experts, and all that is not cut."""
    source = moe_source()
    dest = moe_destination(source)
    wanted = []
    for key, spec in dest.items():
        whole = ((0,) * len(spec.shape), spec.shape)
        wanted.append(target(key, spec.shape, spec.shards[7] if spec.shards else whole))

    def plan() -> None:
        program = compile_program(MOE, source.specs(), dest)
        make_plan(source, wanted, program.outputs)

    return Contender(plan, warm_up)


def job_plan(settings: Settings, everywhere: bool) -> Contender:
    """One rank of a job; the source is cut by 8 ranks a tensor, 64 groups share the tensors out."""
    shape = (1024, 512)
    names = [f"layers.{number // 100}.block.{number % 100}.weight" for number in range(TENSORS)]
    entries = [
        entry(key, shape, rows(shape, 8), [8 * (number % 64) + k for k in range(8)])
        for number, key in enumerate(names)
    ]
    source = index_of(entries, RANKS)
    if everywhere:  # two rows of every tensor
        wanted = [target(key, shape, ((400, 0), (2, 512))) for key in names]
    else:  # a quarter of the columns of every 128th tensor
        wanted = [target(key, shape, ((0, 128), (1024, 128))) for key in names[5::128]]
    dest = {key: TensorSpec(shape, DTYPE) for key in names}

    def plan() -> None:
        program = compile_program([], source.specs(), dest)
        make_plan(source, wanted, program.outputs)

    return Contender(plan, warm_up)
