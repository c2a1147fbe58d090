# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Optimizer states by name: filling them into a new optimizer continues the training exactly."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from flexckpt.errors import LayoutError
from flexckpt.layout.optimizer import optimizer_shards, optimizer_targets
from flexckpt.layout.optimizer_settings import apply_optimizer_settings, optimizer_settings
from flexckpt.model import Shard
from tests.flexckpt.processes import run_ranks


class Tied(nn.Module):
    """A tied parameter, a frozen one, a vector, a matrix of odd size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 5)
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.hidden = nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(F.silu(self.hidden(self.embed(ids) * self.frozen)))


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    ids = torch.arange(7)
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(ids), ids.roll(1)).backward()
        optimizer.step()


def matrices(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.ndim == 2]


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Matrices, and the rest (the frozen parameter with it) without weight decay."""
    rest = [p for p in model.parameters() if p.ndim != 2]
    return [{"params": matrices(model)}, {"params": rest, "weight_decay": 0.0}]


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "adam": lambda m: torch.optim.Adam(groups(m), lr=0.1),
    "adamw amsgrad": lambda m: torch.optim.AdamW(groups(m), lr=0.1, amsgrad=True),
    "adamw fused": lambda m: torch.optim.AdamW(groups(m), lr=0.1, fused=True),
    "adamw foreach": lambda m: torch.optim.AdamW(groups(m), lr=0.1, foreach=True),
    "sgd": lambda m: torch.optim.SGD(groups(m), lr=0.1),
    "sgd momentum": lambda m: torch.optim.SGD(groups(m), lr=0.1, momentum=0.9, dampening=0.5),
    "rmsprop": lambda m: torch.optim.RMSprop(groups(m), lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda m: torch.optim.Adagrad(groups(m), lr=0.1, initial_accumulator_value=0.5),
    "adadelta": lambda m: torch.optim.Adadelta(groups(m), lr=0.1),
    "adamax": lambda m: torch.optim.Adamax(groups(m), lr=0.1),
    "nadam": lambda m: torch.optim.NAdam(groups(m), lr=0.1),
    "radam": lambda m: torch.optim.RAdam(groups(m), lr=0.1),
    "rprop": lambda m: torch.optim.Rprop([{"params": list(m.parameters())}], lr=0.1),
    "asgd": lambda m: torch.optim.ASGD(groups(m), lr=0.1),
    "adafactor": lambda m: torch.optim.Adafactor(groups(m), lr=0.1),
    "muon": lambda m: torch.optim.Muon(matrices(m), lr=0.1),
}


def fill(targets: dict[str, list[Shard]], source: dict[str, list[Shard]]) -> None:
    """Copy whole tensors; every name and dtype must be there."""
    assert targets.keys() == source.keys()
    for name, (target,) in targets.items():
        (stored,) = source[name]
        assert target.tensor.dtype == stored.tensor.dtype
        assert target.global_shape == stored.global_shape
        target.tensor.copy_(stored.tensor)


def present(optimizer: Optimizer) -> dict[tuple[int, str], Any]:
    """The states that are not None, as torch itself lists them."""
    return {
        (number, state): value
        for number, states in optimizer.state_dict()["state"].items()
        for state, value in states.items()
        if value is not None
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_exactly(name: str) -> None:
    model = Tied()
    optimizer = OPTIMIZERS[name](model)
    train(model, optimizer, 3)

    new_model = copy.deepcopy(model)
    before = copy.deepcopy(new_model.state_dict())
    new = OPTIMIZERS[name](new_model)
    initial = copy.deepcopy(new.state_dict())
    targets = optimizer_targets(new_model, new)
    fill(targets.shards, optimizer_shards(model, optimizer))
    if name != "adagrad":  # which has its states from the start
        torch.testing.assert_close(new.state_dict(), initial, rtol=0, atol=0)
    targets.attach()

    torch.testing.assert_close(new_model.state_dict(), before, rtol=0, atol=0)
    assert all(p.grad is None for p in new_model.parameters())
    torch.testing.assert_close(present(new), present(optimizer), rtol=0, atol=0)
    train(model, optimizer, 2)
    train(new_model, new, 2)
    torch.testing.assert_close(new_model.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_names_and_states_are_those_of_torch_distributed() -> None:
    model = Tied()
    optimizer = OPTIMIZERS["adamw amsgrad"](model)
    train(model, optimizer, 2)
    theirs = {
        (key, state): value
        for key, states in get_optimizer_state_dict(model, optimizer)["state"].items()
        for state, value in states.items()
    }
    ours = {(s.key, s.state): s.tensor for (s,) in optimizer_shards(model, optimizer).values()}
    assert ours.keys() == theirs.keys()
    assert ("embed.weight", "exp_avg") in ours
    assert {key for key, _ in ours} == {"embed.weight", "hidden.weight", "hidden.bias"}
    for key, value in theirs.items():
        assert torch.equal(ours[key], value)
        assert ours[key].data_ptr() == value.data_ptr()


def test_hooks_do_not_run() -> None:
    calls: list[str] = []
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("global"))
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer_targets(model, optimizer).attach()
    handle.remove()
    assert calls == []
    assert not getattr(optimizer, "_opt_called", False)


def test_what_is_not_filled_is_not_attached() -> None:
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    targets = optimizer_targets(model, optimizer)
    bias = [name for name in targets.shards if name.startswith("hidden.bias")]
    assert len(bias) == 3
    with pytest.raises(LayoutError, match=r"LAY105.*'hidden.bias' got .*step.* but not .*exp_avg"):
        targets.attach(["hidden.bias@step", "hidden.bias@exp_avg_sq", "else"])
    assert not optimizer.state
    targets.attach(bias)
    assert list(optimizer.state) == [model.hidden.bias]
    # Those that are there are filled in place, the others are made.
    again = optimizer_targets(model, optimizer)
    (step,) = again.shards["hidden.bias@step"]
    assert step.tensor.data_ptr() == optimizer.state[model.hidden.bias]["step"].data_ptr()
    assert again.created.keys() == {"embed.weight", "hidden.weight"}


class Counting(Optimizer):
    """Keeps its step as a Python number, its count of bad steps as another, and a state of None."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            if not state:
                state.update(step=0, scale=0.5, seen=False, later=None, sum=torch.zeros_like(p))
            state["step"] += 1
            state["scale"] /= 3
            state["seen"] = True
            state["sum"] += p.grad


def test_numbers_are_states() -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = Counting(model.parameters())
    model.weight.grad = torch.ones(2, 2)
    for _ in range(3):
        optimizer.step()
    source = optimizer_shards(model, optimizer)
    assert {name: s.tensor.item() for name, (s,) in source.items() if not s.global_shape} == {
        "weight@step": 3,
        "weight@scale": 0.5 / 27,
        "weight@seen": True,
    }
    new = Counting(model.parameters())
    targets = optimizer_targets(model, new)
    fill(targets.shards, source)
    targets.attach()
    assert repr(new.state) == repr(optimizer.state)
    # An existing state that is a number is set, too.
    source["weight@step"][0].tensor.fill_(8)
    targets = optimizer_targets(model, new)
    fill(targets.shards, source)
    targets.attach(["weight@step"])
    assert new.state[model.weight]["step"] == 8
    assert type(new.state[model.weight]["step"]) is int


def test_what_is_refused() -> None:
    model, other = Tied(), Tied()
    with pytest.raises(LayoutError, match=r"INT102.*parameter 0 of group 0.*\(5,\)"):
        optimizer_shards(model, torch.optim.Adam(other.parameters()))
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.state[model.hidden.bias] = {"exp_avg": [1]}
    with pytest.raises(LayoutError, match=r"INT102.*'exp_avg' of 'hidden.bias'.*not list"):
        optimizer_shards(model, optimizer)
    with pytest.raises(LayoutError, match=r"INT102.*LBFGS cannot make the states of"):
        optimizer_targets(model, torch.optim.LBFGS(model.parameters()))


def test_settings_are_plain_data() -> None:
    model = Tied()
    optimizer = torch.optim.AdamW(groups(model), lr=torch.tensor(0.25), betas=(0.5, 0.75))
    settings = json.loads(json.dumps(optimizer_settings(optimizer)))
    assert [s["weight_decay"] for s in settings] == [0.01, 0.0]
    assert settings[0]["lr"] == 0.25
    assert settings[0]["betas"] == [0.5, 0.75]
    assert "params" not in settings[0]

    lr = torch.tensor(0.0)
    new = torch.optim.AdamW(groups(model), lr=lr, fused=True)
    apply_optimizer_settings(new, settings)
    assert optimizer_settings(new) == settings
    assert new.param_groups[0]["betas"] == (0.5, 0.75)
    assert new.param_groups[0]["lr"] is lr
    with pytest.raises(LayoutError, match=r"INT102.*of 1 parameter groups.* has 2"):
        apply_optimizer_settings(new, settings[:1])
    new.param_groups[1]["odd"] = object()
    with pytest.raises(LayoutError, match=r"INT102.*'odd' of parameter group 1.*not object"):
        optimizer_settings(new)


def at(full: torch.Tensor, shard: Shard) -> torch.Tensor:
    assert shard.local_shape is not None
    box = zip(shard.offset, shard.local_shape, strict=True)
    return full[tuple(slice(a, a + n) for a, n in box)]


def resume_sharded(size: int) -> None:
    """One process trains; FSDP2 goes on with its weights and states; both end the same."""
    model = Tied()
    optimizer = OPTIMIZERS["adamw amsgrad"](model)
    train(model, optimizer, 2)
    full = {name: s.tensor.clone() for name, (s,) in optimizer_shards(model, optimizer).items()}

    sharded = copy.deepcopy(model)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size,)))
    resumed = OPTIMIZERS["adamw amsgrad"](sharded)
    targets = optimizer_targets(sharded, resumed)
    assert targets.shards.keys() == full.keys()
    for name, shards in targets.shards.items():
        for shard in shards:
            shard.tensor.copy_(at(full[name], shard))
    targets.attach()
    train(model, optimizer, 2)
    train(sharded, resumed, 2)
    for name, shards in optimizer_shards(sharded, resumed).items():
        (whole,) = optimizer_shards(model, optimizer)[name]
        for shard in shards:
            torch.testing.assert_close(shard.tensor, at(whole.tensor, shard))
    theirs = get_optimizer_state_dict(sharded, resumed)["state"]
    value = theirs["embed.weight"]["exp_avg_sq"].to_local()
    assert (
        value.data_ptr()
        == optimizer_shards(sharded, resumed)["embed.weight@exp_avg_sq"][0].tensor.data_ptr()
    )


@pytest.mark.dist
def test_fsdp2_goes_on_where_one_process_stopped() -> None:
    run_ranks(resume_sharded, 3, 3)


def local_states(size: int) -> None:
    """States kept as plain tensors of the local part have the boxes of their parameter."""
    model = nn.Linear(5, 3, bias=False)
    fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.Adam(model.parameters())
    local = model.weight.to_local()
    optimizer.state[model.weight] = {"exp_avg": torch.ones_like(local), "step": torch.tensor(1.0)}
    (moment,) = optimizer_shards(model, optimizer)["weight@exp_avg"]
    assert moment.global_shape == (3, 5)
    assert moment.local_shape == tuple(local.shape)
    optimizer.state[model.weight]["exp_avg"] = torch.ones(3, 5)
    with pytest.raises(LayoutError, match=r"INT102.*'exp_avg' of 'weight' must have the shape"):
        optimizer_shards(model, optimizer)


@pytest.mark.dist
def test_plain_states_of_sharded_parameters() -> None:
    run_ranks(local_states, 2, 2)
