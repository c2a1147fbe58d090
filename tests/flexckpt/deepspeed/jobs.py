# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the processes of a DeepSpeed job do: train a small model, save and resume, on gloo."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

BATCH = 6  # divides by the world sizes 1, 2 and 3


class Net(nn.Module):
    """Odd sizes, a single element, a tied head, frozen parameters, and buffers of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.frozen = nn.Linear(7, 7)
        self.up = nn.Linear(7, 5)
        self.norm = nn.LayerNorm(5)
        self.down = nn.Linear(5, 7)
        self.gain = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor(0.5))
        self.register_buffer("ids", torch.arange(3))
        self.register_buffer("passing", torch.zeros(2), persistent=False)
        for p in self.frozen.parameters():
            p.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.frozen(x) * self.scale
        x = x + self.down(torch.relu(self.norm(self.up(x)))) * self.gain
        return self.head(x)


def batch(step: int, rank: int, world: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = torch.randint(0, 13, (2, BATCH, 4), generator=generator)
    part = BATCH // world
    mine = tokens[:, rank * part : (rank + 1) * part]
    return mine[0], mine[1]


def config(stage: int, dtype: str, world: int, **zero: Any) -> dict[str, Any]:
    out: dict[str, Any] = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // world,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    if dtype == "bf16":
        out["bf16"] = {"enabled": True}
    if dtype == "bf16_fp32grad":
        out["bf16"] = {"enabled": True}
        out["data_types"] = {"grad_accum_dtype": "fp32"}
    if dtype == "fp16":
        out["fp16"] = {"enabled": True, "initial_scale_power": 4}
    return out


def make_engine(
    stage: int,
    dtype: str,
    seed: int = 0,
    optimizer: str = "adamw",
    universal: bool = False,
    **zero: Any,
) -> Any:
    """A DeepSpeed engine of this job's world size over :class:`Net`, two groups of parameters."""
    import deepspeed

    torch.manual_seed(seed)
    settings = config(stage, dtype, dist.get_world_size(), **zero)
    settings["checkpoint"] = {"load_universal": universal}
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings):
            model = Net()
    else:
        model = Net()
    decayed = [p for n, p in model.named_parameters() if p.requires_grad and "norm" not in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "norm" in n]
    groups = [
        {"params": decayed, "weight_decay": 0.1},
        {"params": rest, "weight_decay": 0.0, "lr": 2e-2},
    ]
    if optimizer == "adamw":
        opt: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=1e-2)
    else:
        opt = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=opt, config=settings, dist_init_required=False
    )
    return engine


def train(engine: Any, first: int, stop: int) -> list[float]:
    """Losses of the steps ``[first, stop)``, averaged over the ranks."""
    rank, world = dist.get_rank(), dist.get_world_size()
    losses = []
    for step in range(first, stop):
        tokens, labels = batch(step, rank, world)
        logits = engine(tokens).float()
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / world)
    return losses


def run_rank(
    rank: int, world: int, store: str, job: Callable[..., Any], args: tuple[Any, ...], out: str
) -> None:
    """Entry of a spawned process: sets up gloo, runs ``job(*args)`` and stores what it returns."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world)
    )
    import logging

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    import deepspeed

    # Otherwise a C++ extension is compiled when the first engine is made.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

    result = job(*args)
    torch.save(result, Path(out) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def launch(world: int, job: Callable[..., Any], *args: Any, scratch: Path) -> list[Any]:
    """What ``job(*args)`` returns on every rank of a new job."""
    scratch.mkdir(parents=True, exist_ok=True)
    store = scratch / "store"
    store.unlink(missing_ok=True)
    torch.multiprocessing.spawn(
        run_rank, (world, str(store), job, args, str(scratch)), nprocs=world, join=True
    )
    return [torch.load(scratch / f"{r}.pt", weights_only=False) for r in range(world)]
