# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where a DeepSpeed engine keeps its parameters: which elements in which flat tensor."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from flexckpt.errors import FlexckptError
from flexckpt.model import Shard
from flexckpt.states import WEIGHT

MASTER = "master"


class Fragment(NamedTuple):
    """Elements ``[start, stop)`` of a flattened parameter, which lie at ``at`` in a flat tensor."""

    key: str
    shape: tuple[int, ...]
    start: int
    stop: int
    at: int


class Owner(NamedTuple):
    """A tensor that the optimizer steps, and whose states have the same layout.

    Attributes:
        tensor: fp32 weights; the key in ``optimizer.state``.
        fragments: what of which parameters it holds.
        names: of the parameters of its group; those without a fragment lie on other ranks.
        group: number of its group in ``optimizer.param_groups``.
    """

    tensor: torch.Tensor
    fragments: list[Fragment]
    names: list[str]
    group: int


@dataclass(slots=True)
class View:
    """An engine as flexckpt sees it.

    Attributes:
        optimizer: the innermost one, with ``state`` and ``param_groups``.
        owners: what it steps.
        refresh: makes the weights of the model from those of the optimizer.
        others: frozen parameters and buffers, as shards with the state "weight".
        model: the weights of trained parameters in the model's dtype, as shards; empty where the
            optimizer's have the same.
        release: undoes what looking has done to the engine.
    """

    optimizer: Any
    owners: list[Owner]
    refresh: Callable[[], None]
    others: list[Shard]
    model: list[Shard]
    release: Callable[[], None] = lambda: None

    @property
    def stepped_state(self) -> str:
        """What the tensors that the optimizer steps are: "master", or "weight" in an fp32 run."""
        return MASTER if self.model else WEIGHT


def view_engine(engine: Any) -> View:
    """Look at an engine.

    Raises:
        FlexckptError: INT102 if the engine is in a state, or of a kind, that is not supported.
    """
    optimizer = getattr(engine, "optimizer", None)
    if not hasattr(engine, "param_names") or not hasattr(engine, "module"):
        raise _unfit(
            f"engine must be what deepspeed.initialize returns, not {type(engine).__name__}"
        )
    if optimizer is None or type(optimizer).__name__ in ("DummyOptim", "DeepSpeedZeRoOffload"):
        raise _unfit("the engine has no optimizer; give deepspeed.initialize one")
    if getattr(engine, "pipeline_parallelism", False):
        raise _unfit("engines with pipeline parallelism are not supported")
    if getattr(engine, "has_moe_layers", False):
        raise _unfit("engines with layers of experts (MoE) are not supported")
    kinds: Sequence[tuple[str, Callable[[Any, Any], View]]] = (
        ("fp32_partitioned_groups_flat", _zero3),
        ("single_partition_of_fp32_groups", _zero12),
        ("fp32_groups_flat_partition", _bf16),
        ("fp32_groups_flat", _fused),
        ("fp32_groups", _unfused),
    )
    for mark, make in kinds:
        if hasattr(optimizer, mark):
            return make(engine, optimizer)
    if isinstance(optimizer, torch.optim.Optimizer):
        return _plain(engine, optimizer)
    raise _unfit(f"the optimizer {type(optimizer).__name__} is not supported")


def fragment_shards(owner: Owner, tensor: torch.Tensor, state: str) -> Iterator[Shard]:
    """Shards of a state that lies in ``tensor`` as the weights lie in the owner's."""
    flat = tensor.detach().view(-1)
    for key, shape, start, stop, at in owner.fragments:
        part = flat.narrow(0, at, stop - start)
        yield Shard(key, part, shape, (0,) * len(shape), shape, (start, stop), state)


def _unfit(why: str) -> FlexckptError:
    return FlexckptError("INT102", why)


def _key(engine: Any, parameter: torch.Tensor) -> str:
    name: str = engine.param_names[parameter]
    return name


def _flat(
    engine: Any,
    group: int,
    tensor: torch.Tensor,
    parameters: Sequence[torch.Tensor],
    offsets: Iterable[int],
    low: int,
) -> Owner:
    """The owner that has a flat vector of parameters from element ``low`` on."""
    fragments, high = [], low + tensor.numel()
    for parameter, offset in zip(parameters, offsets, strict=False):
        first, last = max(offset, low), min(offset + parameter.numel(), high)
        if first < last:
            key, shape = _key(engine, parameter), tuple(parameter.shape)
            fragments.append(Fragment(key, shape, first - offset, last - offset, first - low))
    return Owner(tensor, fragments, [_key(engine, p) for p in parameters], group)


def _behind_one_another(parameters: Iterable[torch.Tensor]) -> Iterator[int]:
    """Offsets in a vector without gaps, and its length."""
    return accumulate((p.numel() for p in parameters), initial=0)


def _zero12(engine: Any, optimizer: Any) -> View:
    owners = []
    for group, tensor in enumerate(optimizer.single_partition_of_fp32_groups):
        parameters = optimizer.round_robin_bit16_groups[group]
        offsets = optimizer.round_robin_bit16_offsets[group]
        low = dist.get_rank(optimizer.real_dp_process_group[group]) * tensor.numel()
        owners.append(_flat(engine, group, tensor, parameters, offsets, low))
    trained = [p for group in optimizer.round_robin_bit16_groups for p in group]
    model = _whole_parameters(engine, trained)
    model = model if _is_16_bit(trained) else []
    return View(optimizer.optimizer, owners, optimizer.update_lp_params, _others(engine), model)


def _bf16(engine: Any, optimizer: Any) -> View:
    owners = []
    for group, tensor in enumerate(optimizer.fp32_groups_flat_partition):
        parameters = optimizer.bf16_groups[group]
        low = dist.get_rank(optimizer.real_dp_process_group[group]) * tensor.numel()
        offsets = _behind_one_another(parameters)
        owners.append(_flat(engine, group, tensor, parameters, offsets, low))
    trained = [p for group in optimizer.bf16_groups for p in group]
    model = _whole_parameters(engine, trained)
    return View(optimizer.optimizer, owners, optimizer.update_lp_params, _others(engine), model)


def _fused(engine: Any, optimizer: Any) -> View:
    """16 bit without ZeRO: a flat vector of each group on every rank."""
    owners = []
    for group, tensor in enumerate(optimizer.fp32_groups_flat):
        parameters = optimizer.fp16_groups[group]
        offsets = _behind_one_another(parameters)
        owners.append(_flat(engine, group, tensor, parameters, offsets, 0))

    def refresh() -> None:
        for low, high in zip(optimizer.fp16_groups_flat, optimizer.fp32_groups_flat, strict=True):
            low.data.copy_(high.data)

    trained = [p for group in optimizer.fp16_groups for p in group]
    model = _whole_parameters(engine, trained)
    return View(optimizer.optimizer, owners, refresh, _others(engine), model)


def _unfused(engine: Any, optimizer: Any) -> View:
    """16 bit without ZeRO: an fp32 copy of each parameter."""
    pairs = [
        (low, high, group)
        for group, (lows, highs) in enumerate(
            zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True)
        )
        for low, high in zip(lows, highs, strict=True)
    ]

    def refresh() -> None:
        for low, high, _ in pairs:
            low.data.copy_(high.data)

    owners = [_whole(engine, low, high, group) for low, high, group in pairs]
    model = _whole_parameters(engine, [low for low, _, _ in pairs])
    return View(optimizer.optimizer, owners, refresh, _others(engine), model)


def _plain(engine: Any, optimizer: torch.optim.Optimizer) -> View:
    """An optimizer of torch on the parameters themselves."""
    owners = [
        _whole(engine, parameter, parameter, number)
        for number, group in enumerate(optimizer.param_groups)
        for parameter in group["params"]
        if parameter.requires_grad and parameter.numel()
    ]
    return View(optimizer, owners, lambda: None, _others(engine), [])


def _whole(engine: Any, parameter: torch.Tensor, tensor: torch.Tensor, group: int) -> Owner:
    key, numel = _key(engine, parameter), parameter.numel()
    return Owner(tensor, [Fragment(key, tuple(parameter.shape), 0, numel, 0)], [key], group)


def _zero3(engine: Any, optimizer: Any) -> View:
    if getattr(optimizer, "swap_optimizer", False) or getattr(
        optimizer, "params_in_nvme_and_cpu", 0
    ):
        raise _unfit("engines that keep parameters or the optimizer on NVMe are not supported")
    rank, ranks = (
        dist.get_rank(optimizer.dp_process_group),
        dist.get_world_size(optimizer.dp_process_group),
    )
    optimizer.checkpoint_event_prologue()  # parameters that are gathered are partitioned
    owners, model = [], []
    for number, tensor in enumerate(optimizer.fp32_partitioned_groups_flat):
        fragments, at = [], 0
        for parameter in optimizer.fp16_groups[number]:
            piece = -(-parameter.ds_numel // ranks)
            if parameter.ds_tensor.numel() != piece:
                raise _unfit(
                    "engines that cut parameters over a part of the ranks are not supported"
                )
            start, stop = _piece(parameter.ds_numel, piece, rank)
            if start < stop:
                key, shape = _key(engine, parameter), tuple(parameter.ds_shape)
                fragments.append(Fragment(key, shape, start, stop, at))
            at += piece
        names = [_key(engine, p) for p in optimizer.fp16_groups[number]]
        owners.append(Owner(tensor, fragments, names, optimizer.sub_group_to_group_id[number]))
        model += _parts(engine, optimizer.fp16_groups[number], rank, ranks)
    trained = [p for group in optimizer.fp16_groups for p in group]
    frozen = [p for p in engine.module.parameters() if not _is_trained(p)]
    others = _buffers(engine) + _parts(engine, frozen, rank, ranks)
    model = model if _is_16_bit([p.ds_tensor for p in trained]) else []

    def refresh() -> None:
        for number, high in enumerate(optimizer.fp32_partitioned_groups_flat):
            low = optimizer.fp16_partitioned_groups_flat[number]
            low.data.copy_(high.data)
            parts = optimizer.fp16_partitioned_groups[number]
            for part, data in zip(parts, optimizer.unflatten(low, parts), strict=True):
                part.data = data.data
        optimizer.checkpoint_event_epilogue()

    release = optimizer.checkpoint_event_epilogue
    return View(optimizer.optimizer, owners, refresh, others, model, release)


def _piece(numel: int, piece: int, rank: int) -> tuple[int, int]:
    return min(rank * piece, numel), min((rank + 1) * piece, numel)


def _parts(engine: Any, parameters: Iterable[Any], rank: int, ranks: int) -> list[Shard]:
    """Parameters of ZeRO-3 in the dtype of the model: an even part of each."""
    shards = []
    for parameter in parameters:
        numel, shape = parameter.ds_numel, tuple(parameter.ds_shape)
        start, stop = _piece(numel, -(-numel // ranks), rank)
        part = parameter.ds_tensor.detach().view(-1).narrow(0, 0, stop - start)
        zero = (0,) * len(shape)
        shards.append(Shard(_key(engine, parameter), part, shape, zero, shape, (start, stop)))
    return [s for s in shards if s.tensor.numel()]


def _is_trained(parameter: Any) -> bool:
    numel = parameter.ds_numel if hasattr(parameter, "ds_numel") else parameter.numel()
    return bool(parameter.requires_grad and numel > 0)


def _is_16_bit(tensors: Sequence[torch.Tensor]) -> bool:
    return any(t.dtype in (torch.float16, torch.bfloat16) for t in tensors)


def _whole_parameters(engine: Any, parameters: Iterable[torch.Tensor]) -> list[Shard]:
    return [_as_shard(_key(engine, p), p) for p in parameters]


def _as_shard(key: str, tensor: torch.Tensor) -> Shard:
    return Shard(key, tensor.detach(), tuple(tensor.shape), (0,) * tensor.dim())


def _others(engine: Any) -> list[Shard]:
    """Frozen parameters and buffers of a model whose parameters are whole."""
    frozen = [p for p in engine.module.parameters() if not _is_trained(p)]
    return _buffers(engine) + _whole_parameters(engine, frozen)


def _buffers(engine: Any) -> list[Shard]:
    """The buffers that a state dict of the model has."""
    kept = set(engine._get_buffer_names())
    return [_as_shard(name, b) for name, b in engine.module.named_buffers() if name in kept]
