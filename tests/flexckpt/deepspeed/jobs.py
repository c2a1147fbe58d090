# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the processes of a DeepSpeed job do: train a small model, save and resume, on gloo."""

import contextlib
import io
import logging
import os
import tempfile
import warnings
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from flexckpt.model import Shard
from tests.flexckpt.deepspeed.tp_files import write_checkpoint

BATCH = 6  # divides by the world sizes 1, 2 and 3
SAVED, LAST = 2, 5  # a checkpoint is made after two steps of five


class Run(NamedTuple):
    """A training run: stage of ZeRO, dtypes, optimizer, groups of parameters, settings."""

    stage: int
    dtype: str = "fp32"
    optimizer: str = "adamw"
    groups: int = 2
    zero: tuple[tuple[str, Any], ...] = ()
    empty: bool = False  # a parameter without elements, which DeepSpeed cannot have in ZeRO-3


ALIGNED = (("parameter_alignment", True), ("round_robin_gradients", True))
RUNS: dict[str, Run] = {
    "zero1": Run(1),
    "zero2": Run(2),
    "zero3": Run(3),
    "zero1_bf16": Run(1, "bf16"),
    "zero2_bf16": Run(2, "bf16"),
    "zero3_bf16": Run(3, "bf16"),
    "bf16_optimizer": Run(1, "bf16_fp32grad"),
    "zero2_aligned": Run(2, "bf16", zero=ALIGNED),
    "zero3_small_groups": Run(3, "fp16", zero=(("sub_group_size", 40),)),
    "zero2_empty": Run(2, "bf16", empty=True),
    "zero2_sgd": Run(2, optimizer="sgd"),
    "zero1_one_group": Run(1, groups=1),
}
UNIVERSAL = ("zero2", "zero1_bf16", "zero3_bf16")  # those that DeepSpeed itself converts
CONVERTED = ("zero3_bf16", "zero1_one_group")  # those that flexckpt makes universal


class Net(nn.Module):
    """Odd sizes, one element, a tied head, frozen parameters, and buffers of all kinds."""

    def __init__(self, empty: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.frozen = nn.Linear(7, 7)
        self.up = nn.Linear(7, 5)
        self.norm = nn.LayerNorm(5)
        self.down = nn.Linear(5, 7)
        self.gain = nn.Parameter(torch.ones(1))
        if empty:
            self.nothing = nn.Parameter(torch.zeros(0, 3))
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


def config(run: Run, world: int, universal: bool) -> dict[str, Any]:
    out: dict[str, Any] = {
        "train_batch_size": BATCH,
        "train_micro_batch_size_per_gpu": BATCH // world,
        "zero_optimization": {
            "stage": run.stage,
            "stage3_param_persistence_threshold": 8,  # the small ones stay gathered
            **dict(run.zero),
        },
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
        "checkpoint": {"load_universal": universal},
    }
    if run.dtype.startswith("bf16"):
        out["bf16"] = {"enabled": True}
    if run.dtype == "bf16_fp32grad":
        out["data_types"] = {"grad_accum_dtype": "fp32"}
    if run.dtype == "fp16":
        out["fp16"] = {"enabled": True, "initial_scale_power": 4}
    return out


def make_engine(run: Run, seed: int = 0, universal: bool = False) -> Any:
    """A DeepSpeed engine of this job's world size over :class:`Net`."""
    import deepspeed

    torch.manual_seed(seed)
    settings = config(run, dist.get_world_size(), universal)
    init = deepspeed.zero.Init if run.stage == 3 else contextlib.nullcontext
    with init(**({"config_dict_or_path": settings} if run.stage == 3 else {})):
        model = Net(run.empty)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    norms = [n for n in trained if "norm" in n and run.groups == 2]
    groups = [{"params": [p for n, p in trained.items() if n not in norms], "weight_decay": 0.1}]
    if norms:
        groups.append({"params": [trained[n] for n in norms], "weight_decay": 0.0, "lr": 2e-2})
    opt: torch.optim.Optimizer
    if run.optimizer == "adamw":
        opt = torch.optim.AdamW(groups, lr=1e-2)
    else:
        opt = torch.optim.SGD(groups, lr=1e-2, momentum=0.9)
    # On CPUs DeepSpeed refuses fp16 unless oneDNN has fast kernels for it. torch computes it on any.
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
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


class Rank(NamedTuple):
    """What a rank of the job that makes checkpoints returns.

    Attributes:
        losses: by run, of the steps after the checkpoint, which did not break it.
        shards: by run, of the engine at the checkpoint.
        resumed: by run, the losses of an engine of the same kind that goes on from the checkpoint.
    """

    losses: dict[str, list[float]]
    shards: dict[str, list[Shard]]
    resumed: dict[str, Any]


def make_checkpoints(root: Path) -> Rank:
    """Save every run after some steps with DeepSpeed and with flexckpt, go on, and resume."""
    import flexckpt
    from flexckpt.interop.deepspeed import engine_extra, from_engine

    losses, shards = {}, {}
    for name, run in RUNS.items():
        engine = make_engine(run)
        train(engine, 0, SAVED)
        client = {"note": "x", "seen": [1, 2]}
        engine.save_checkpoint(str(root / name), tag="step", client_state=client)
        held = from_engine(engine)
        extra = engine_extra(engine, {"note": "x"})
        flexckpt.save(held, root / f"{name}_flexckpt", extra=extra).wait()
        for shard in held:
            shard.tensor = shard.tensor.clone()
        shards[name] = held
        losses[name] = train(engine, SAVED, LAST)
        engine.destroy()
    if dist.get_rank() == 0:
        convert_with_deepspeed(root)
    for name in CONVERTED:
        flexckpt.convert(root / name, root / f"{name}_written", to="universal")
    resumed = resume_all({name: Resume(root / name, run) for name, run in RUNS.items()})
    return Rank(losses, shards, resumed)


def convert_with_deepspeed(root: Path) -> None:
    """What DeepSpeed's own tools make of checkpoints: ``.fp32`` and ``_universal`` beside them."""
    from deepspeed.checkpoint.ds_to_universal import main
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    quiet = io.StringIO()
    with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
        for name in RUNS:
            if name != "bf16_optimizer":  # which zero_to_fp32 cannot read
                whole = get_fp32_state_dict_from_zero_checkpoint(str(root / name))
                torch.save({k: t.detach() for k, t in whole.items()}, root / f"{name}.fp32")
        for name in UNIVERSAL:
            main(universal_arguments(root / name / "step", root / f"{name}_universal" / "step"))
        for stage in (1, 3):
            write_checkpoint(root / f"tp{stage}" / "step", stage)
            target = root / f"tp{stage}_universal" / "step"
            main(universal_arguments(root / f"tp{stage}" / "step", target))


def universal_arguments(source: Path, target: Path) -> Namespace:
    return Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=not source.parent.name.startswith("tp"),
    )


class Resume(NamedTuple):
    """An engine that is to go on from a checkpoint: by flexckpt, or by DeepSpeed itself."""

    path: Path
    run: Run
    by: str = "flexckpt"


def resume_all(resumes: dict[str, Resume]) -> dict[str, Any]:
    """Resume engines that start from other weights: losses of their next steps, and counters."""
    from flexckpt.interop.deepspeed import load_into_engine

    results = {}
    for name, (path, run, by) in resumes.items():
        engine = make_engine(run, seed=7 if by == "flexckpt" else 0, universal=by == "deepspeed")
        if by == "flexckpt":
            report = load_into_engine(engine, path)
            client = report.extra.get("client_state")
        else:  # DeepSpeed restores no frozen parameters: those of the seed are the right ones
            _, client = engine.load_checkpoint(str(path))
        losses = train(engine, SAVED, LAST)
        results[name] = losses, engine.global_steps, (client or {}).get("note")
        engine.destroy()
    return results


def run_rank(
    rank: int, world: int, store: str, job: Callable[..., Any], args: tuple[Any, ...], out: str
) -> None:
    """Entry of a spawned process: sets up gloo, runs ``job(*args)`` and stores what it returns."""
    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
    )
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # DeepSpeed's
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    import deepspeed

    # Otherwise a C++ extension is compiled when the first engine is made.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        result = job(*args)
    torch.save(result, Path(out) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def launch(world: int, job: Callable[..., Any], *args: Any) -> list[Any]:
    """What ``job(*args)`` returns on every rank of a new job of DeepSpeed."""
    with tempfile.TemporaryDirectory() as scratch:
        arguments = (world, f"{scratch}/store", job, args, scratch)
        torch.multiprocessing.spawn(run_rank, arguments, nprocs=world, join=True)
        return [torch.load(Path(scratch) / f"{r}.pt", weights_only=False) for r in range(world)]
