# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes megatron_checkpoint.zip: a small checkpoint as real megatron-core writes it on two ranks.

Run from the root of the repository with a Python that has megatron-core 0.16.1::

    python -m tests.flexckpt.io.data.make_megatron

The ranks are two of tensor parallelism and of expert parallelism. The model has three layers of one
kind, whose tensors are stacked, and of another kind, whose tensors have a number in their names.
``contents.json`` says of each tensor of the single-device model, under the name that its module
has, the shape and the first value; further values count up by one.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from math import prod
from pathlib import Path
from typing import Any

import torch

RANKS = 2
FILE = Path(__file__).with_name("megatron_checkpoint.zip")
LAYERS, EXPERTS = 3, 4

# Name in the model of one device, shape, axis that is cut; `{l}` is a layer, `{e}` an expert.
TENSORS: dict[str, tuple[tuple[int, ...], int | None]] = {
    "embedding.word_embeddings.weight": ((6, 4), 0),
    "decoder.layers.{l}.self_attention.linear_qkv.weight": ((6, 4), 0),
    "decoder.layers.{l}.self_attention.linear_proj.weight": ((4, 6), 1),
    "decoder.layers.{l}.input_layernorm.weight": ((4,), None),
    "decoder.layers.{l}.mlp.linear_fc1.weight": ((8, 4), 0),
    "decoder.layers.{l}.mlp.experts.linear_fc2.weight{e}": ((4, 2), None),
    "decoder.layers.7.mlp.linear_fc2.weight": ((4, 5), None),
    "decoder.final_layernorm.weight": ((4,), None),
}
STATES = {"weight": 0, "exp_avg": 0.25, "exp_avg_sq": 0.5, "master": 0.75}


def contents() -> dict[str, Any]:
    """Shape and first value of every tensor, by its name."""
    out: dict[str, Any] = {}
    for template, (shape, _) in TENSORS.items():
        for layer in range(LAYERS if "{l}" in template else 1):
            for expert in range(EXPERTS if "{e}" in template else 1):
                name = template.format(l=layer, e=expert)
                out[name] = {"shape": shape, "first": 100 * len(out)}
    return out


def values(entry: dict[str, Any], state: str = "weight") -> torch.Tensor:
    first = entry["first"] + STATES[state]
    return (first + torch.arange(prod(entry["shape"]), dtype=torch.float64)).reshape(entry["shape"])


def _stored(template: str) -> str:
    """The key under which megatron-core stores the tensors of a template."""
    grouped = template.replace("mlp.experts.", "mlp.experts.experts.").replace("{e}", "")
    return grouped.replace("layers.{l}.", "layers.")


def _sharded(rank: int, state: str, dtype: torch.dtype) -> dict[str, Any]:
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.transformer.mlp import apply_swiglu_sharded_factory

    out: dict[str, Any] = {}
    every = contents()
    stored_state = {"master": "fp32_param"}.get(state, state)
    prefix = "" if state == "weight" else f"optimizer.state.{stored_state}."
    for template, (_, axis) in TENSORS.items():
        for layer in range(LAYERS if "{l}" in template else 1):
            for expert in range(EXPERTS if "{e}" in template else 1):
                name = template.format(l=layer, e=expert)
                full = values(every[name], state).to(dtype)
                stacked = [(layer, LAYERS)] if "{l}" in template else []
                if "{e}" in template:
                    stacked.append((expert, EXPERTS))
                    if expert // (EXPERTS // RANKS) != rank:
                        continue
                offsets = [(k, *place) for k, place in enumerate(stacked)]
                part = full
                replica = 0 if axis is not None or "{e}" in template else rank
                gated = "linear_fc1" in template
                if axis is not None:
                    halves = full.chunk(2) if gated else (full,)
                    part = torch.cat([half.chunk(RANKS, axis)[rank] for half in halves], axis)
                    offsets.append((len(stacked) + axis, rank, RANKS))
                made = ShardedTensor.from_rank_offsets(
                    prefix + _stored(template),
                    part.contiguous(),
                    *offsets,
                    replica_id=replica,
                    prepend_axis_num=len(stacked),
                )
                if gated:
                    made = apply_swiglu_sharded_factory(made, offsets[: len(stacked)])
                out[f"{prefix}{name}"] = made
    return out


def run_rank(rank: int, folder: str) -> None:
    # megatron-core waits for the device and puts small tensors there; here is none.
    torch.cuda.synchronize = lambda *args: None
    torch.cuda.current_device = lambda: "cpu"
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject

    torch.distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    state: dict[str, Any] = _sharded(rank, "weight", torch.bfloat16)
    for name in ("exp_avg", "exp_avg_sq", "master"):
        state.update(_sharded(rank, name, torch.float32))
    state["rerun"] = ShardedObject("rerun_state", {"mode": "disabled"}, (RANKS,), (rank,))
    state["iteration"] = 7
    state["args"] = argparse.Namespace(num_layers=LAYERS, params_dtype=torch.bfloat16, lr=0.5)
    state["optimizer"] = {"param_groups": [{"lr": 0.5, "betas": (0.9, 0.95), "step": 7}]}
    dist_checkpointing.save(state, folder, content_metadata={"singleton_local_shards": False})
    torch.distributed.destroy_process_group()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}
        command = [sys.executable, "-m", "tests.flexckpt.io.data.make_megatron"]
        ranks = [
            subprocess.Popen([*command, str(rank), folder], env=environment)
            for rank in range(RANKS)
        ]
        ends = [rank.wait() for rank in ranks]
        if any(ends):
            raise SystemExit("a rank failed")
        with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("contents.json", json.dumps(contents(), indent=1))
            for path in sorted(Path(folder).iterdir()):
                archive.writestr(f"checkpoint/{path.name}", path.read_bytes())


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run_rank(int(sys.argv[1]), sys.argv[2])
    else:
        main()
