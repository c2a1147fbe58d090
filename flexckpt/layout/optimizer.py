# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The states of a torch optimizer by the names of the model's parameters, to be saved or filled."""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import is_dtensor, shards_of
from flexckpt.layout.names import parameter_names
from flexckpt.model import Shard
from flexckpt.states import join_name

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

# A number is kept in a tensor that holds every value of its type exactly.
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


class Number(NamedTuple):
    """A state that is a Python number: the dict that holds it, and the tensor in its place."""

    holder: dict[str, Any]
    state: str
    tensor: torch.Tensor


@dataclass(slots=True)
class OptimizerTargets:
    """What a checkpoint fills in an optimizer.

    Attributes:
        shards: by flat name (``w@exp_avg``); views of tensors that the optimizer has or will get.
    """

    shards: dict[str, list[Shard]]
    optimizer: Optimizer
    numbers: dict[str, Number]
    created: dict[str, tuple[nn.Parameter, dict[str, Any]]] = field(default_factory=dict)

    def attach(self, filled: Collection[str] | None = None) -> None:
        """Give the optimizer the states that it did not have before, and its numbers.

        Args:
            filled: the flat names that were filled; all if None. A parameter none of whose states
                was filled stays without states, as before its first step.

        Raises:
            LayoutError: LAY105 if only some of the new states of a parameter were filled; nothing
                is attached then.
        """
        names = self.shards.keys() if filled is None else set(filled)
        complete = [key for key in self.created if self._all_filled(key, names)]
        for key in complete:
            parameter, states = self.created[key]
            self.optimizer.state[parameter] = states
        for name, (holder, state, tensor) in self.numbers.items():
            if name in names:
                holder[state] = type(holder[state])(tensor.item())

    def _all_filled(self, key: str, filled: Collection[str]) -> bool:
        own = {name for s in self.created[key][1] if (name := join_name(key, s)) in self.shards}
        missing = {name for name in own if name not in filled}
        if missing and missing != own:
            raise LayoutError(
                "LAY105",
                f"{key!r} got {sorted(own - missing)} but not {sorted(missing)}, and its optimizer "
                "needs all of them",
            )
        return not missing


def optimizer_shards(model: nn.Module, optimizer: Optimizer) -> dict[str, list[Shard]]:
    """The states that an optimizer has now, as shards by flat name (``w@exp_avg``).

    A parameter without states (frozen, or before the first step) has none. A tied parameter goes by
    its first name. A state that is a Python number becomes a tensor without axes.

    Raises:
        LayoutError: INT102 if a parameter is not of the model, or a state is neither a tensor nor a
            number or does not fit its parameter.
    """
    return _collect(model, optimizer, create=False).shards


def optimizer_targets(model: nn.Module, optimizer: Optimizer) -> OptimizerTargets:
    """The states of an optimizer to be filled in place, also those that it does not have yet.

    A parameter that requires gradients and has no states gets those that a step would give it: the
    optimizer's own code runs on a stand-in of zeros. The optimizer and the model are left alone
    until :meth:`OptimizerTargets.attach`.

    Raises:
        LayoutError: like :func:`optimizer_shards`; INT102 if the optimizer cannot make its states.
    """
    return _collect(model, optimizer, create=True)


def _collect(model: nn.Module, optimizer: Optimizer, create: bool) -> OptimizerTargets:
    targets = OptimizerTargets({}, optimizer, {})
    for name, parameter, group in _named(model, optimizer):
        states = optimizer.state.get(parameter, {})
        if all(value is None for value in states.values()):
            if not create or not parameter.requires_grad:
                continue
            states = _first_states(name, optimizer, group, parameter)
            targets.created[name] = (parameter, states)
        for state, value in states.items():
            if value is None:
                continue
            flat = join_name(name, state)
            if type(value) in _NUMBERS:
                value = torch.tensor(value, dtype=_NUMBERS[type(value)])
                targets.numbers[flat] = Number(states, state, value)
            targets.shards[flat] = _state_shards(name, state, value, parameter)
    return targets


def _named(
    model: nn.Module, optimizer: Optimizer
) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Every parameter of an optimizer with its name and its group."""
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    for g, group in enumerate(optimizer.param_groups):
        for k, parameter in enumerate(group["params"]):
            if id(parameter) not in names:
                raise LayoutError(
                    "INT102",
                    f"parameter {k} of group {g} of the optimizer, of shape "
                    f"{tuple(parameter.shape)}, is not a parameter of the model",
                )
            yield names[id(parameter)], parameter, group


def _state_shards(name: str, state: str, value: Any, parameter: nn.Parameter) -> list[Shard]:
    if not isinstance(value, torch.Tensor):
        raise LayoutError(
            "INT102",
            f"state {state!r} of {name!r} must be a tensor or a number, not {type(value).__name__}",
        )
    if is_dtensor(parameter) and not is_dtensor(value) and value.ndim:
        value = _of_the_local_part(name, state, value, parameter)
    return shards_of(name, value, state=state)


def _of_the_local_part(
    name: str, state: str, value: torch.Tensor, parameter: "DTensor"
) -> torch.Tensor:
    """A plain state of a DTensor belongs to the local part, if it has its shape."""
    from torch.distributed.tensor import DTensor

    with torch.no_grad():
        local = parameter.to_local()
    if value.shape != local.shape:
        raise LayoutError(
            "INT102",
            f"state {state!r} of {name!r} must have the shape {tuple(local.shape)} of the local "
            f"part of its parameter, not {tuple(value.shape)}",
        )
    return DTensor.from_local(
        value.detach(),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _first_states(
    name: str, optimizer: Optimizer, group: dict[str, Any], parameter: nn.Parameter
) -> dict[str, Any]:
    """The states that a first step gives a parameter, from a step of a copy on zeros."""
    stand_in = nn.Parameter(torch.zeros_like(parameter))
    stand_in.grad = torch.zeros_like(parameter)
    copy = object.__new__(type(optimizer))
    copy.__dict__.update(optimizer.__dict__)
    copy.state = defaultdict(dict)
    copy.param_groups = [{**group, "params": [stand_in]}]
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):  # the user's hooks are for real steps
        step = step.__wrapped__
    try:
        step(copy)
    except Exception as error:
        raise LayoutError(
            "INT102",
            f"{type(optimizer).__name__} cannot make the states of {name!r} before its first step: "
            f"{error}",
        ) from error
    return dict(copy.state[stand_in])
