# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From what users hand over (dictionaries of tensors, DTensors, shards) to shards and specs."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from flexckpt.comm.group import Comm
from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import is_dtensor, shards_of
from flexckpt.model import Shard, TensorSpec, dtype_name
from flexckpt.plan.targets import Target
from flexckpt.states import WEIGHT, is_scalar, join_name, split_name

State = Mapping[str, Any] | Sequence[Shard]


def shards_in(state: State, literal: Container[str] = ()) -> list[Shard]:
    """All shards of this process in a state.

    Args:
        state: tensors, DTensors, shards or lists of shards by name, in dictionaries that may be
            nested (their names are joined with a dot); or a list of shards.
        literal: names that are keys as they stand, though they end like states (``mlp.w_0``).

    Raises:
        LayoutError: LAY104 for anything else, LAY102 where two values have the same name.
    """
    shards: list[Shard] = []
    owners: dict[tuple[str, str], str] = {}
    names: set[str] = set()
    for name, value in _leaves(state, ""):
        if name and name in names:
            raise LayoutError("LAY102", f"two values have the name {name!r}")
        names.add(name)
        if name:
            found = shards_of(name, value, state=WEIGHT if name in literal else None)
        else:
            found = [_named(value, literal)]
        for key, kind in dict.fromkeys((s.key, s.state) for s in found):
            if name and owners.setdefault((key, kind), name) != name:
                raise LayoutError(
                    "LAY102",
                    f"{name!r} and {owners[key, kind]!r} both name {join_name(key, kind)!r}",
                )
        shards += map(_with_data, found)
    return shards


def _with_data(shard: Shard) -> Shard:
    """The shard, apart from autograd, if its tensor is one that has bytes."""
    tensor = shard.tensor
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        name = join_name(shard.key, shard.state)
        what = f"{tensor.layout}, {dtype_name(tensor.dtype)}, on {tensor.device}"
        raise LayoutError("LAY104", f"{name!r} must be a dense tensor with data, not {what}")
    return replace(shard, tensor=tensor.detach()) if tensor.requires_grad else shard


def _leaves(state: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(state, Mapping):
        for name, value in state.items():
            if not isinstance(name, str):
                raise LayoutError("LAY104", f"the name {name!r} below {prefix!r} must be a string")
            full = f"{prefix}.{name}" if prefix else name
            if isinstance(value, Mapping):
                yield from _leaves(value, full)
            else:
                yield full, value
    elif isinstance(state, list | tuple):
        for value in state:
            yield "", value
    else:
        what = f"a state is a dictionary or a list of shards, not {type(state).__name__}"
        hint = "; pass its state_dict()" if isinstance(state, torch.nn.Module) else ""
        raise LayoutError("LAY104", what + hint)


def _named(value: Any, literal: Container[str]) -> Shard:
    if not isinstance(value, Shard):
        raise LayoutError("LAY104", f"a list must hold shards, not {type(value).__name__}")
    if value.key in literal:
        return value
    return shards_of(split_name(value.key)[0], value)[0]


def lonely_states(state: State) -> list[str]:
    """Names that are read as states of a parameter that the state does not name."""
    names = {name for name, value in _leaves(state, "") if name and not isinstance(value, Shard)}
    return [name for name in names if (split_name(name)[0]) not in names]


def mesh_keys(state: State) -> set[str]:
    """The keys of a state whose shards follow from the placements of DTensors."""
    return {split_name(name)[0] for name, value in _leaves(state, "") if name and is_dtensor(value)}


def targets_of(shards: Iterable[Shard]) -> list[Target]:
    """What the planner needs to know of shards that are to be filled.

    Raises:
        LayoutError: LAY102 for a tensor several elements of which share their memory.
    """
    targets = []
    for s in shards:
        shape, strides = s.tensor.shape, s.tensor.stride()
        if 0 in strides and any(n > 1 for n, k in zip(shape, strides, strict=True) if k == 0):
            name = join_name(s.key, s.state)
            raise LayoutError(
                "LAY102", f"{name!r} cannot be filled: its strides are {strides}, it is expanded"
            )
        dtype = dtype_name(s.tensor.dtype)
        targets.append(Target(s.key, s.state, tuple(s.global_shape), dtype, tuple(s.regions())))
    return targets


def specs_of(
    shards: Iterable[Shard],
    comm: Comm,
    *,
    dtypes: bool = True,
    known: Mapping[str, TensorSpec] | None = None,
    by_mesh: Collection[str] = (),
) -> dict[str, TensorSpec]:
    """The tensors by key as all ranks hold them: shape, dtype of the weight, distinct boxes.

    Args:
        shards: those of this rank.
        comm: the ranks.
        dtypes: say them; else the specs take any.
        known: what tells the shape of a key of which there are only scalars here.
        by_mesh: keys of this rank that are DTensors; see :func:`mesh_keys`.

    Raises:
        LayoutError: LAY105 where ranks contradict one another.
    """
    with comm.together("looking at the shards"):
        mine = *_boxes(shards), sorted(by_mesh)
    everyone = comm.gather(mine)
    placed = {key for _, _, keys in everyone for key in keys}
    shapes: dict[str, tuple[int, ...]] = {}
    found: dict[str, torch.dtype | None] = {}
    boxes: dict[str, dict[tuple[tuple[int, ...], tuple[int, ...]], None]] = {}
    for rank, (theirs, _, _) in enumerate(everyone):
        for key, (shape, dtype, parts) in theirs.items():
            if shapes.setdefault(key, shape) != shape:
                raise LayoutError(
                    "LAY105", f"{key!r} has shape {shape} on rank {rank}, {shapes[key]} on another"
                )
            if dtype is not None and found.get(key) not in (None, dtype):
                raise LayoutError(
                    "LAY105", f"{key!r} has dtype {dtype} on rank {rank}, {found[key]} on another"
                )
            found[key] = dtype or found.get(key)
            boxes.setdefault(key, {}).update(parts)
    specs = {
        key: TensorSpec(
            shape,
            found[key] if dtypes else None,
            tuple(boxes[key]) if len(boxes[key]) > 1 else None,
            key in placed,
        )
        for key, shape in shapes.items()
    }
    for _, scalars, _ in everyone:
        for key, shape in scalars.items():
            if key not in specs:
                elsewhere = known.get(key) if known else None
                specs[key] = TensorSpec(elsewhere.shape if elsewhere else shape, None)
    return specs


_Boxes = dict[tuple[tuple[int, ...], tuple[int, ...]], None]
_Seen = tuple[tuple[int, ...], torch.dtype | None, _Boxes]


def _boxes(shards: Iterable[Shard]) -> tuple[dict[str, _Seen], dict[str, tuple[int, ...]]]:
    """Shape, dtype of the weight and boxes of every key; and the shapes of scalars without any."""
    out: dict[str, _Seen] = {}
    scalars: dict[str, tuple[int, ...]] = {}
    for s in shards:
        shape = tuple(s.global_shape)
        if is_scalar(s.state):
            scalars[s.key] = shape
            continue
        found, dtype, boxes = out.get(s.key, (shape, None, {}))
        if found != shape:
            raise LayoutError("LAY105", f"{s.key!r} has shards of {found} and of {shape}")
        if s.state == WEIGHT:
            dtype = s.tensor.dtype
        boxes[tuple(s.offset), tuple(s.local_shape or ())] = None
        out[s.key] = shape, dtype, boxes
    return out, {key: shape for key, shape in scalars.items() if key not in out}
