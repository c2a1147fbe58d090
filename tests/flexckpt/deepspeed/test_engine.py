# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Engines that go on from other layouts and world sizes, against runs that were not broken."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.interop import deepspeed as interop
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


@cache
def resumed(world: int) -> dict[str, Any]:
    root = made().root
    jobs = {n: Resume(root / f"{s}{suffix}", run) for n, (s, suffix, run) in RESUMES.items()}
    written = root / "zero1_one_group_written"
    jobs |= {n: Resume(written, run, "deepspeed") for n, run in LOADED_BY_DEEPSPEED.items()}
    first: dict[str, Any] = launch(world, resume_all, jobs)[0]
    return first


def _tolerance(run: Run) -> float:
    """What another order of summation changes: gradients are rounded to 16 bits before it."""
    return 1e-5 if run.dtype == "fp32" else 1e-2


@pytest.mark.parametrize("name", RUNS)
def test_the_same_world_goes_on_exactly(name: str) -> None:
    losses, steps, note = made().resumed[name]
    assert losses == made().losses[name]
    assert (steps, note) == (LAST, "x")


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("name", RESUMES)
def test_another_world_goes_on(name: str, world: int) -> None:
    source, _, run = RESUMES[name]
    losses, steps, note = resumed(world)[name]
    assert losses == pytest.approx(made().losses[source], rel=_tolerance(run))
    assert (steps, note) == (LAST, "x")


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("name", LOADED_BY_DEEPSPEED)
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
            SimpleNamespace(param_names={}, module=None, optimizer=object(), mp_world_size=2),
            "tensor parallelism",
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


def _plain_engine(optimizer: str) -> Any:
    """What the bridge needs of an engine whose optimizer is one of torch."""
    model = torch.nn.Linear(3, 2)
    names = {p: n for n, p in model.named_parameters()}
    kinds: dict[str, Any] = {"Adam": {}, "SGD": {"momentum": 0.9}}
    made_optimizer = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1, **kinds[optimizer])
    return SimpleNamespace(
        param_names=names,
        module=model,
        optimizer=made_optimizer,
        lr_scheduler=None,
        global_steps=0,
        _get_buffer_names=list,
    )


@pytest.mark.parametrize(("optimizer", "state"), [("Adam", "exp_avg"), ("SGD", "momentum_buffer")])
def test_a_checkpoint_without_the_optimizer(
    optimizer: str, state: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import flexckpt

    monkeypatch.setattr(interop, "_check_installed", lambda: None)
    weights = {"weight": torch.randn(2, 3).bfloat16(), "bias": torch.randn(2)}
    flexckpt.save(weights, tmp_path / "c").wait()
    engine = _plain_engine(optimizer)
    with pytest.raises(CheckpointError, match=f"CKP201.*{state!r}.*load_optimizer_states=False"):
        interop.load_into_engine(engine, tmp_path / "c")
    interop.load_into_engine(engine, tmp_path / "c", load_optimizer_states=False)
    for name, tensor in weights.items():
        assert torch.equal(getattr(engine.module, name), tensor.float())
    assert not engine.optimizer.state
