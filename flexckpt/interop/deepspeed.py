# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""DeepSpeed engines: resume one from any checkpoint at any world size, and save one."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from flexckpt.api.load import LoadReport, Strict, load, shared_index
from flexckpt.comm.group import Comm
from flexckpt.errors import CheckpointError, FlexckptError
from flexckpt.index import SourceIndex
from flexckpt.interop.deepspeed_engine import MASTER, Owner, View, fragment_shards, view_engine
from flexckpt.interop.deepspeed_places import Places
from flexckpt.io.deepspeed_files import plain
from flexckpt.model import Shard
from flexckpt.states import WEIGHT, is_scalar

# The states of optimizers by class; an optimizer that is not listed takes those of the checkpoint.
_ADAM = ("exp_avg", "exp_avg_sq", "step")
_STATES: dict[str, tuple[str, ...]] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "FusedAdam": _ADAM,
    "DeepSpeedCPUAdam": _ADAM,
    "FusedLamb": _ADAM,
    "FusedLion": ("exp_avg", "step"),
    "DeepSpeedCPULion": ("exp_avg", "step"),
}


def load_into_engine(
    engine: Any,
    path: str | os.PathLike[str],
    *,
    aoa: str | Sequence[str] | None = None,
    strict: Strict = True,
    load_optimizer_states: bool = True,
) -> LoadReport:
    """Resume a DeepSpeed engine (ZeRO-1, 2, 3 or none) from any layout, at any world size.

    The fp32 weights and the states of the optimizer are read straight into the engine's partitions;
    values take the dtypes that the engine has. The model's weights are then made from them.
    Settings of the optimizer's groups, counters, the scheduler and the loss scale follow where the
    checkpoint has them. Every rank of the engine calls this.

    Args:
        engine: what ``deepspeed.initialize`` returned.
        path: a checkpoint as :func:`flexckpt.load` takes it.
        aoa: the mapping from the checkpoint to the model's names.
        strict: see :func:`flexckpt.load`.
        load_optimizer_states: False takes the weights alone, and leaves the optimizer as it is.

    Returns:
        As :func:`flexckpt.load`; ``extra["client_state"]`` is what ``save_checkpoint`` was given.

    Raises:
        FlexckptError: INT101 if DeepSpeed is missing, INT102 if the engine is of a kind or in a
            state that is not supported, or as :func:`flexckpt.load`. If the files' contents are
            damaged, the engine's fp32 weights and states are left half loaded.
    """
    _check_installed()
    view = view_engine(engine)
    try:
        states: list[_OwnerStates] = []
        numbers: Mapping[str, float] = {}
        if load_optimizer_states:
            index = shared_index(Path(path).absolute(), Comm())
            wanted, dtypes = _states_to_load(view.optimizer, index)
            numbers = index.extra.get("optimizer_numbers") or {}
            states = [_OwnerStates(view.optimizer, owner, wanted, dtypes) for owner in view.owners]
        targets = [s for o in view.owners for s in fragment_shards(o, o.tensor, MASTER)]
        targets += [s for owner in states for s in owner.targets] + view.others
        report = load(Places(engine)(targets), path, aoa=aoa, strict=strict, cast=True)
        for owner in states:
            owner.keep(numbers)
    except BaseException:
        view.release()
        raise
    with torch.no_grad():
        view.refresh()
    _restore_settings(engine, view, report.extra, with_optimizer=load_optimizer_states)
    return report


def from_engine(engine: Any) -> list[Shard]:
    """What a DeepSpeed engine holds on this rank, for :func:`flexckpt.save`.

    Shards of the weights ("weight" in the dtype of the model, "master" in fp32 where that has 16
    bits), of the optimizer's states, frozen parameters and buffers. Their memory is the engine's.

    Raises:
        FlexckptError: as :func:`load_into_engine`.
    """
    _check_installed()
    view = view_engine(engine)
    shards = [*view.model, *view.others]
    for owner in view.owners:
        shards += fragment_shards(owner, owner.tensor, view.stepped_state)
        for name, value in view.optimizer.state.get(owner.tensor, {}).items():
            if is_scalar(name):
                shards += _scalar_shards(owner, name, value)
            elif isinstance(value, torch.Tensor) and value.numel() == owner.tensor.numel():
                shards += fragment_shards(owner, value, name)
    view.release()
    return Places(engine)(shards)


def engine_extra(engine: Any, client_state: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What belongs beside an engine's tensors: ``flexckpt.save(..., extra=engine_extra(engine))``.

    Counters, settings of the optimizer's groups, the scheduler and the loss scale, as plain data.
    """
    view = view_engine(engine)
    view.release()
    groups = []
    for number, group in enumerate(view.optimizer.param_groups):
        names = [n for owner in view.owners if owner.group == number for n in owner.names]
        kept = {k: v for k, v in group.items() if _is_setting(v) and k != "params"}
        groups.append({**plain(kept), "params": names})
    scheduler = engine.lr_scheduler.state_dict() if engine.lr_scheduler is not None else None
    return {
        "global_steps": engine.global_steps,
        "global_samples": engine.global_samples,
        "skipped_steps": engine.skipped_steps,
        "param_groups": groups,
        "lr_scheduler": plain(scheduler),
        "loss_scale": _loss_scale(engine),
        "client_state": dict(client_state or {}),
    }


class _OwnerStates:
    """The optimizer's states of one owner, while they are being loaded."""

    def __init__(
        self, optimizer: Any, owner: Owner, wanted: Sequence[str], dtypes: dict[str, torch.dtype]
    ) -> None:
        self.optimizer, self.owner = optimizer, owner
        self.tensors: dict[str, torch.Tensor] = {}
        self.scalars: dict[str, list[Shard]] = {}
        self.targets: list[Shard] = []
        present = optimizer.state.get(owner.tensor, {})
        for state in wanted:
            if is_scalar(state):
                if state in dtypes:
                    self.scalars[state] = self._scalar_targets(state, dtypes[state])
                    self.targets += self.scalars[state]
                continue
            tensor = present.get(state)
            if not isinstance(tensor, torch.Tensor):
                tensor = torch.zeros_like(owner.tensor, requires_grad=False)
            self.tensors[state] = tensor
            self.targets += fragment_shards(owner, tensor, state)

    def _scalar_targets(self, state: str, dtype: torch.dtype) -> list[Shard]:
        """A place for the value of each parameter; where none lies on this rank, for the first."""
        keys = [f.key for f in self.owner.fragments] or self.owner.names[:1]
        return [Shard(key, torch.zeros((), dtype=dtype), (), (), state=state) for key in keys]

    def keep(self, numbers: Mapping[str, float]) -> None:
        """Hand what was loaded to the optimizer."""
        kept = self.optimizer.state[self.owner.tensor]
        kept.update(self.tensors)
        for state, shards in self.scalars.items():
            values = {shard.tensor.item(): shard for shard in shards}
            if len(values) > 1:
                keys = [shard.key for shard in values.values()]
                raise CheckpointError(
                    "CKP203",
                    f"{state} is {', '.join(map(str, values))} of {', '.join(keys)}, which the "
                    "engine steps together",
                )
            for value in values:
                kept[state] = self._like_present(kept.get(state), value)
        for state, value in numbers.items():
            if state not in self.scalars and is_scalar(state):
                kept[state] = self._like_present(kept.get(state), value)

    def _like_present(self, present: Any, value: float) -> Any:
        """Optimizers of torch count steps in a tensor, those of DeepSpeed in an integer."""
        if isinstance(present, torch.Tensor):
            return torch.full_like(present, value)
        if present is None and type(self.optimizer).__module__.startswith("torch.optim"):
            return torch.tensor(float(value))
        return int(value)


def _check_installed() -> None:
    if find_spec("deepspeed") is None:
        raise FlexckptError("INT101", "DeepSpeed is not installed: pip install deepspeed")
    import_module("deepspeed")


def _states_to_load(
    optimizer: Any, index: SourceIndex
) -> tuple[tuple[str, ...], dict[str, torch.dtype]]:
    """Which states the optimizer needs, and the dtypes of the scalars of the checkpoint."""
    found = {state: entry.dtype for (_, state), entry in index.entries.items()}
    numbers = index.extra.get("optimizer_numbers") or {}
    name = type(optimizer).__name__
    needed = _STATES.get(name, tuple(s for s in found if s not in (WEIGHT, MASTER)))
    if name == "SGD":
        momentum = any(group["momentum"] for group in optimizer.param_groups)
        needed = ("momentum_buffer",) if momentum else ()
    if any(group.get("amsgrad") for group in optimizer.param_groups):
        needed = (*needed, "max_exp_avg_sq")
    for state in needed:
        if state not in found and state not in numbers:
            raise CheckpointError(
                "CKP201",
                f"{index.path} has no {state!r}, which the optimizer {name} needs; "
                "load_optimizer_states=False takes the weights alone",
            )
    return needed, {s: dtype for s, dtype in found.items() if is_scalar(s)}


def _scalar_shards(owner: Owner, state: str, value: Any) -> list[Shard]:
    """The value of each parameter, on the rank that has its first element."""
    tensor = torch.as_tensor(value, dtype=torch.float32).detach().reshape(()).cpu()
    return [Shard(f.key, tensor, (), (), state=state) for f in owner.fragments if f.start == 0]


def _restore_settings(
    engine: Any, view: View, extra: Mapping[str, Any], *, with_optimizer: bool
) -> None:
    """Give the engine what a checkpoint has beside tensors."""
    for counter in ("global_steps", "global_samples", "skipped_steps"):
        if isinstance(extra.get(counter), int):
            setattr(engine, counter, extra[counter])
    if not with_optimizer:
        return
    saved, groups = extra.get("param_groups") or [], view.optimizer.param_groups
    for group, settings in zip(groups, saved, strict=False) if len(saved) == len(groups) else ():
        for key, value in settings.items():
            if key != "params" and key in group and _is_setting(group[key]):
                group[key] = tuple(value) if isinstance(value, list) else value
    scheduler = extra.get("lr_scheduler")
    if engine.lr_scheduler is not None and isinstance(scheduler, dict):
        engine.lr_scheduler.load_state_dict(scheduler)
    scale = extra.get("loss_scale")
    if scale is not None and _loss_scale(engine) is not None:
        engine.optimizer.loss_scaler.cur_scale = scale


def _is_setting(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple | list)


def _loss_scale(engine: Any) -> float | None:
    """The scale of an engine that adapts it."""
    if not getattr(engine.optimizer, "dynamic_loss_scale", False):
        return None
    scaler = getattr(engine.optimizer, "loss_scaler", None)
    return float(scaler.cur_scale) if scaler is not None else None
