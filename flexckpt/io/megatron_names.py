# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The tensors of a Megatron checkpoint under the names that the modules of one device have.

Megatron stacks layers of one kind, and experts, along axes before those of a tensor, and stores
them under one name; the two halves of a gated layer may be two tensors. Here they are taken apart
and put together again, without touching an element.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import prod

from flexckpt.boxes import c_strides
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Stored
from flexckpt.states import WEIGHT

Resolve = Callable[[Stored], Stored]
Entries = dict[tuple[str, str], Entry]

_MOST_STACKED = 2**20
_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.([^.]+)\.(.+)")
_STATES = {"fp32_param": "master", "param": "master"}
_LAYERS = re.compile(r"(.*\blayers\.)(?!\d)(.+)")
_EXPERTS = re.compile(r"(.*\bexperts\.)experts\.(?:(\d+)\.)?(.+)")


def present_entries(stored: Mapping[str, Entry], resolve: Resolve) -> Entries:
    """The entries under the names of modules.

    ``decoder.layers.mlp.linear_fc2.weight`` of shape ``[L, ...]`` becomes
    ``decoder.layers.<l>.mlp.linear_fc2.weight``; ``mlp.experts.experts.linear_fc1.weight`` of shape
    ``[E, ...]``, or with a number behind ``experts.``, becomes
    ``mlp.experts.linear_fc1.weight<e>``, as grouped experts name it; ``weight_w`` and ``weight_v``
    become ``weight``, one behind the other along their first axis;
    ``optimizer.state.exp_avg.<name>`` becomes the state ``exp_avg`` of ``<name>``, and
    ``fp32_param`` the state ``master``. Other names stay.

    Args:
        stored: by the names in the metadata.
        resolve: finds the bytes of a part, needed where one part holds several experts.

    Raises:
        CheckpointError: CKP202 if two tensors would get one name.
    """
    entries: Entries = {}
    for name, entry in stored.items():
        key, state = _optimizer_state(name)
        if state != WEIGHT and key in stored:
            entry = _unflatten(entry, stored[key])
        for part in _unstack(key, state, entry, resolve):
            if entries.setdefault((part.key, state), part) is not part:
                raise CheckpointError("CKP202", f"two tensors are the {state} of {part.key!r}")
    return _join_halves(entries)


def _optimizer_state(name: str) -> tuple[str, str]:
    match = _OPTIMIZER.fullmatch(name)
    return (match[2], _STATES.get(match[1], match[1])) if match else (name, WEIGHT)


def _unflatten(entry: Entry, weight: Entry) -> Entry:
    """A state that was stored flat, as Megatron did before 0.14.

    Of a weight of shape [X, Y], cut into boxes of [x, y], the state then had the shape
    [X / x, Y / y, x * y], and each part was a range of the last axis.
    """
    grid = entry.shape[:-1]
    if len(grid) != len(weight.shape) or 0 in grid:
        return entry
    box = tuple(n // parts for n, parts in zip(weight.shape, grid, strict=True))
    if prod(box) != entry.shape[-1] or prod(box) * prod(grid) != prod(weight.shape):
        return entry
    shards = []
    for part in entry.shards:
        if part.shape[:-1] != (1,) * len(grid):
            return entry
        offset = tuple(at * n for at, n in zip(part.offset, box, strict=False))
        flat = part.offset[-1], part.offset[-1] + part.shape[-1]
        shards.append(part._replace(offset=offset, shape=box, flat_range=flat))
    return Entry(entry.key, entry.state, weight.shape, entry.dtype, shards)


def _unstack(key: str, state: str, entry: Entry, resolve: Resolve) -> Iterator[Entry]:
    """The tensors that are stacked in an entry, or the entry itself under its new name."""
    layers = _LAYERS.fullmatch(key)
    experts = _EXPERTS.fullmatch(key)
    axes = (layers is not None) + (experts is not None and experts[2] is None)
    if len(entry.shape) < axes or prod(entry.shape[:axes]) > _MOST_STACKED:
        what = f"{key!r} of shape {entry.shape} is not a stack of layers or experts"
        raise CheckpointError("CKP103", what)
    stacks: dict[tuple[int, ...], list[Stored]] = {
        index: [] for index in product(*map(range, entry.shape[:axes]))
    }
    for shard in entry.shards:
        for index, part in _take_apart(shard, axes, entry.dtype.itemsize, resolve):
            stacks[index].append(part)
    for index, shards in stacks.items():
        name = _module_name(key, index)
        yield Entry(name, state, entry.shape[axes:], entry.dtype, shards)


def _module_name(key: str, index: tuple[int, ...]) -> str:
    numbers = list(map(str, index))
    if match := _LAYERS.fullmatch(key):
        key = f"{match[1]}{numbers.pop(0)}.{match[2]}"
    if match := _EXPERTS.fullmatch(key):
        expert = match[2] if match[2] is not None else numbers.pop(0)
        tail, half = re.fullmatch(r"(.+?)(_[wv])?", match[3]).groups("")  # type: ignore[union-attr]
        key = f"{match[1]}{tail}{expert}{half}"
    return key


def _take_apart(
    shard: Stored, axes: int, itemsize: int, resolve: Resolve
) -> Iterator[tuple[tuple[int, ...], Stored]]:
    """The parts of a shard along its first axes: the indices there, and the part without them."""
    first, lead = shard.offset[:axes], shard.shape[:axes]
    offset, shape = shard.offset[axes:], shard.shape[axes:]
    if prod(lead) == 1:
        strides = None if shard.strides is None else shard.strides[axes:]
        yield first, shard._replace(offset=offset, shape=shape, strides=strides)
        return
    shard = resolve(shard)
    strides = shard.strides or c_strides(shard.shape)
    if shard.position is None:
        raise CheckpointError("CKP103", "the place of a part cannot be found")
    for local in product(*map(range, lead)):
        index = tuple(a + b for a, b in zip(first, local, strict=True))
        at = sum(a * s for a, s in zip(local, strides, strict=False))
        part = shard._replace(offset=offset, shape=shape, checksum=None, blob=None)
        if shard.flat_range is None:
            position = shard.position + at * itemsize
            yield index, part._replace(position=position, strides=strides[axes:])
            continue
        start, stop = max(shard.flat_range[0] - at, 0), min(shard.flat_range[1] - at, prod(shape))
        if start < stop:
            position = shard.position + (at + start - shard.flat_range[0]) * itemsize
            yield index, part._replace(position=position, flat_range=(start, stop))


def _join_halves(entries: Entries) -> Entries:
    """``weight_w`` and ``weight_v`` as ``weight``."""
    out: Entries = {}
    for (key, state), entry in entries.items():
        stem, half = key[:-2], key[-2:]
        other = entries.get((stem + ("_v" if half == "_w" else "_w"), state))
        if half not in ("_w", "_v") or other is None or other.shape != entry.shape:
            out[key, state] = entry
        elif half == "_w":
            rows = entry.shape[0]
            below = [s._replace(offset=(s.offset[0] + rows, *s.offset[1:])) for s in other.shards]
            shape = (2 * rows, *entry.shape[1:])
            out[stem, state] = Entry(stem, state, shape, entry.dtype, [*entry.shards, *below])
    return out
