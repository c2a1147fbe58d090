# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Engines that go on from other layouts and world sizes, against runs that were not broken."""

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import flexckpt
from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.interop import deepspeed as interop
from flexckpt.interop.deepspeed_engine import Owner
from flexckpt.model import Shard
from tests.flexckpt.deepspeed.jobs import LAST, RUNS, UNIVERSAL, Resume, Run, launch, resume_all
from tests.flexckpt.deepspeed.made import made

pytestmark = pytest.mark.dist

# Name -> the run whose checkpoint it is, suffix of the checkpoint, the engine that goes on.
RESUMES: dict[str, tuple[str, str, Run]] = {
    **{name: (name, "", run) for name, run in RUNS.items()},
    "zero1 to zero3": ("zero1", "", RUNS["zero3"]),
    "zero3 to zero2": ("zero3", "", RUNS["zero2"]),
    "zero2 without zero": ("zero2", "", Run(0)),
    "zero3 saved by flexckpt": ("zero3", "_flexckpt", RUNS["zero3"]),
    "zero1 saved by flexckpt to zero3": ("zero1", "_flexckpt", RUNS["zero3"]),
    "zero2_bf16 to bf16 without zero": ("zero2_bf16", "_flexckpt", Run(0, "bf16")),
    **{f"{name} universal": (name, "_universal", RUNS[name]) for name in UNIVERSAL},
}
# Universal checkpoints that flexckpt wrote and DeepSpeed loads.
LOADED_BY_DEEPSPEED = {f"by DeepSpeed {stage}": Run(stage, groups=1) for stage in (1, 2, 3)}
# Three processes are slow to start: they try what three ranks cut in other ways than one.
IN_THREE = [
    "zero1",
    "zero3",
    "zero3_bf16",
    "bf16_optimizer",
    "zero2_aligned",
    "zero3_small_groups",
    "zero1 saved by flexckpt to zero3",
    "by DeepSpeed 2",
    "by DeepSpeed 3",
]
WORLDS = [*((n, 1) for n in (*RESUMES, *LOADED_BY_DEEPSPEED)), *((n, 3) for n in IN_THREE)]


@cache
def resumed(world: int) -> dict[str, Any]:
    root = made().root
    jobs = {n: Resume(root / f"{s}{suffix}", run) for n, (s, suffix, run) in RESUMES.items()}
    written = root / "zero1_one_group_written"
    jobs |= {n: Resume(written, run, "deepspeed") for n, run in LOADED_BY_DEEPSPEED.items()}
    chosen = {name: jobs[name] for name, in_world in WORLDS if in_world == world}
    first: dict[str, Any] = launch(world, resume_all, chosen)[0]
    return first


def _tolerance(run: Run) -> float:
    """What another order of summation changes: gradients are rounded to 16 bits before it."""
    return 1e-5 if run.dtype == "fp32" else 1e-2


@pytest.mark.parametrize("name", RUNS)
def test_the_same_world_goes_on_exactly(name: str) -> None:
    losses, steps, note = made().resumed[name]
    assert losses == made().losses[name]
    assert (steps, note) == (LAST, "x")


@pytest.mark.parametrize(("name", "world"), [w for w in WORLDS if w[0] in RESUMES])
def test_another_world_goes_on(name: str, world: int) -> None:
    source, _, run = RESUMES[name]
    losses, steps, note = resumed(world)[name]
    assert losses == pytest.approx(made().losses[source], rel=_tolerance(run))
    assert (steps, note) == (LAST, "x")


@pytest.mark.parametrize(("name", "world"), [w for w in WORLDS if w[0] in LOADED_BY_DEEPSPEED])
def test_deepspeed_loads_what_flexckpt_writes(name: str, world: int) -> None:
    losses, steps, note = resumed(world)[name]
    assert losses == pytest.approx(made().losses["zero1_one_group"], rel=1e-5)
    assert (steps, note) == (LAST, "x")


@pytest.mark.parametrize(
    ("engine", "why"),
    [
        (torch.nn.Linear(2, 2), "not Linear"),
        (SimpleNamespace(param_names={}, module=None, optimizer=None), "no optimizer"),
        (
            SimpleNamespace(
                param_names={}, module=None, optimizer=object(), pipeline_parallelism=True
            ),
            "pipeline parallelism",
        ),
        (
            SimpleNamespace(param_names={}, module=None, optimizer=object(), has_moe_layers=True),
            "MoE",
        ),
        (
            SimpleNamespace(
                param_names={},
                module=None,
                optimizer=SimpleNamespace(fp32_partitioned_groups_flat=[], swap_optimizer=True),
            ),
            "NVMe",
        ),
        (SimpleNamespace(param_names={}, module=None, optimizer=object()), "object"),
    ],
)
def test_engines_that_do_not_serve(engine: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "_check_installed", lambda: None)
    for call in (
        lambda: interop.load_into_engine(engine, "x"),
        lambda: interop.from_engine(engine),
    ):
        with pytest.raises(FlexckptError, match=why) as caught:
            call()
        assert caught.value.code == "INT102"


def test_without_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interop, "find_spec", lambda name: None)
    with pytest.raises(FlexckptError, match=r"INT101.*pip install deepspeed"):
        interop.load_into_engine(object(), "x")


class DeepSpeedCPUAdam(torch.optim.Adam):
    """Named and placed as the optimizer of DeepSpeed that counts steps in an integer."""


def _plain_engine(optimizer: Any, **settings: Any) -> Any:
    """What the bridge needs of an engine whose optimizer steps the parameters themselves."""
    model = torch.nn.Linear(3, 2)
    return SimpleNamespace(
        param_names={p: n for n, p in model.named_parameters()},
        module=model,
        optimizer=optimizer(model.parameters(), lr=0.1, **settings),
        lr_scheduler=None,
        global_steps=0,
        global_samples=0,
        skipped_steps=0,
        _get_buffer_names=list,
    )


def _step(engine: Any) -> None:
    engine.optimizer.zero_grad()
    engine.module(torch.arange(6.0).view(2, 3)).square().sum().backward()
    engine.optimizer.step()


@pytest.mark.parametrize(
    ("engine", "state"),
    [
        (_plain_engine(torch.optim.Adam), "exp_avg"),
        (_plain_engine(torch.optim.SGD, momentum=0.9), "momentum_buffer"),
    ],
    ids=["Adam", "SGD"],
)
def test_a_checkpoint_without_the_optimizer(
    engine: Any, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interop, "_check_installed", lambda: None)
    weights = {"weight": torch.randn(2, 3).bfloat16(), "bias": torch.randn(2)}
    flexckpt.save(weights, tmp_path / "c").wait()
    with pytest.raises(CheckpointError, match=f"CKP201.*{state!r}.*load_optimizer_states=False"):
        interop.load_into_engine(engine, tmp_path / "c")
    interop.load_into_engine(engine, tmp_path / "c", load_optimizer_states=False)
    for name, tensor in weights.items():
        assert torch.equal(getattr(engine.module, name), tensor.float())
    assert not engine.optimizer.state


@pytest.mark.parametrize("kind", [torch.optim.Adam, DeepSpeedCPUAdam, torch.optim.SGD])
def test_names_that_a_mapping_changes(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interop, "_check_installed", lambda: None)
    settings = {"momentum": 0.5} if kind is torch.optim.SGD else {"amsgrad": True}
    first = _plain_engine(kind, **settings)
    first.global_steps = 2
    for _ in range(2):
        _step(first)
    shards = interop.from_engine(first)
    for shard in shards:
        shard.key = f"old.{shard.key}"
    flexckpt.save(shards, tmp_path / "c", extra=interop.engine_extra(first)).wait()
    second = _plain_engine(kind, **settings)
    mapping = ["old.weight -> weight", "old.bias -> bias"]
    interop.load_into_engine(second, tmp_path / "c", aoa=mapping)
    assert second.global_steps == 2
    if kind is DeepSpeedCPUAdam:
        assert {s["step"] for s in second.optimizer.state.values()} == {2}
        assert all(isinstance(s["step"], int) for s in second.optimizer.state.values())
        for state in second.optimizer.state.values():
            state["step"] = torch.tensor(2.0)  # as its stand-in here needs it
    _step(first)
    _step(second)
    for name in ("weight", "bias"):
        assert torch.equal(getattr(first.module, name), getattr(second.module, name))


def test_steps_that_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that an engine steps together must have been stepped as often."""
    monkeypatch.setattr(interop, "_check_installed", lambda: None)
    engine = _plain_engine(torch.optim.Adam)
    _step(engine)
    shards = interop.from_engine(engine)
    shards += [Shard("bias", torch.tensor(7.0), (), (), state="step")]
    shards = [s for s in shards if s.state != "step" or s.key != "bias" or s.tensor.item() == 7]
    flexckpt.save(shards, tmp_path / "c").wait()
    view = interop.view_engine(engine)
    both = Owner(view.owners[0].tensor, [f for o in view.owners for f in o.fragments], [], 0)
    states = interop._OwnerStates(engine.optimizer, both, ("step",), {"step": torch.float32})
    flexckpt.load(states.targets, tmp_path / "c", strict={"unexpected": "ignore"})
    with pytest.raises(CheckpointError, match=r"CKP203.*1.0, 7.0 of weight, bias"):
        states.keep({})
