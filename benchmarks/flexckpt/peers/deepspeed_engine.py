# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""DeepSpeed engines on CPUs, their checkpoints, and DeepSpeed's own ways to convert these."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

WIDTH = 1024
TAG = "step1"
BYTES_PER_PARAMETER = 14  # bf16 weight, float32 master, two moments


def layers_for(size: int) -> int:
    """How many linear layers make a checkpoint of ``size`` bytes."""
    return max(2, size // (BYTES_PER_PARAMETER * (WIDTH + 1) * WIDTH))


def make_engine(layers: int, stage: int, universal: bool = False) -> Any:
    """An engine of a stack of linear layers in bf16 with AdamW. gloo must be running."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "checkpoint": {"load_universal": universal},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=False)
    return engine


def train_and_save(layers: int, stage: int, folder: Path) -> None:
    """One step, so that the optimizer has state, and a checkpoint."""
    engine = make_engine(layers, stage)
    train(engine)
    engine.save_checkpoint(str(folder), tag=TAG)


def train(engine: Any) -> None:
    """One step, the same on all ranks."""
    inputs = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    engine.backward(engine(inputs).float().square().mean())
    engine.step()


def to_universal(folder: Path) -> Path:
    """What the documentation asks for: a command that writes a copy in the universal layout."""
    out = folder / f"{TAG}_universal"
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal"]
    command += ["--input_folder", str(folder / TAG), "--output_folder", str(out)]
    done = subprocess.run(
        [*command, "--inject_missing_state"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return out


def load_universal(engine: Any, folder: Path) -> None:
    engine.load_checkpoint(str(folder), tag=f"{TAG}_universal")


def masters(engine: Any) -> dict[str, torch.Tensor]:
    """The float32 weights and first moments of the last layer, whole; called on all ranks."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    parameter = engine.module[-1].weight
    return {
        "weight": safe_get_full_fp32_param(parameter).clone(),
        "exp_avg": safe_get_full_optimizer_state(parameter, "exp_avg").clone(),
    }


def to_fp32(folder: Path, out: Path) -> None:
    """DeepSpeed's way to one float32 state dict in safetensors files."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict

    convert_zero_checkpoint_to_fp32_state_dict(
        str(folder), str(out), safe_serialization=True, tag=TAG
    )
