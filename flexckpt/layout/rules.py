# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Shards of plain local tensors by rules: which names a group of ranks cuts, and along which axis.

A Megatron-like model holds plain tensors; that ``linear_qkv.weight`` is a part of a larger tensor
is known to its code alone. A table of rules says it once for all ranks.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from flexckpt.boxes import map_add
from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import Value, shards_of
from flexckpt.model import Shard
from flexckpt.states import WEIGHT, is_scalar


class Split(NamedTuple):
    """Ranks hold equal parts of an axis, in order.

    Attributes:
        axis: of the tensor; negative counts from the end.
        size: true length of the axis, where the parts are padded to be equal (a padded vocabulary);
            the padding, at the end, is no part of the shards. None if nothing is padded.
    """

    axis: int
    size: int | None = None


Rule = int | Split | None


def shards_by_rules(
    state: Mapping[str, Value],
    rules: Mapping[str, Rule],
    rank: int,
    size: int,
) -> dict[str, list[Shard]]:
    """The local tensors of one rank of a group as shards of the tensors of the whole group.

    Groups nest: the shards may go through the rules of another group, whose parts are the tensors
    of the first one (tensor parallelism, then experts stacked over expert parallelism).

    Args:
        state: local tensors by flat name (``w``, ``w@exp_avg``), or shards of a group within.
        rules: pattern of parameter names to axis, :class:`Split`, or None where every rank holds
            the whole. ``*`` stands for any characters. Of several patterns for a name, the one with
            the most other characters counts. Every name must have a rule: ``{"*": None}`` makes
            replication the default. All states of a parameter follow its rule, scalars do not.
        rank: place in the group.
        size: of the group.

    Returns:
        Shards by the names of ``state``, with views of its tensors. A rank that holds padding only
        gets a shard without elements.

    Raises:
        LayoutError: LAY107 if a name has no rule or several that disagree, or a rule does not fit.
    """
    if not 0 <= rank < size:
        raise LayoutError("LAY107", f"rank must be 0 to {size - 1}, not {rank}")
    patterns = [(pattern, _regex(pattern), _split(rule)) for pattern, rule in rules.items()]
    found: dict[str, list[Shard]] = {}
    for name, value in state.items():
        found[name] = []
        for shard in shards_of(name, value):
            split = None if _is_scalar(shard) else _rule_for(shard.key, patterns)
            placed = shard if split is None else _placed(name, shard, split, rank, size)
            found[name].append(placed)
    return found


def _is_scalar(shard: Shard) -> bool:
    return is_scalar(shard.state) or (shard.state != WEIGHT and not shard.global_shape)


def _split(rule: Rule) -> Split | None:
    return Split(rule) if isinstance(rule, int) else rule


def _regex(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _rule_for(name: str, patterns: list[tuple[str, re.Pattern[str], Split | None]]) -> Split | None:
    found = [
        (len(pattern.replace("*", "")), pattern, split)
        for pattern, regex, split in patterns
        if regex.fullmatch(name)
    ]
    if not found:
        raise LayoutError(
            "LAY107", f'no rule matches {name!r}; {{"*": None}} makes replication the default'
        )
    most = max(length for length, _, _ in found)
    best = {pattern: split for length, pattern, split in found if length == most}
    if len(set(best.values())) > 1:
        raise LayoutError(
            "LAY107", f"the rules {sorted(best)} are equally long, match {name!r} and disagree"
        )
    return next(iter(best.values()))


def _placed(name: str, shard: Shard, split: Split, rank: int, size: int) -> Shard:
    """A shard of one part as a shard of all ``size`` parts of an axis."""
    part = tuple(shard.global_shape)
    axis = split.axis + len(part) if split.axis < 0 else split.axis
    if not 0 <= axis < len(part):
        raise LayoutError(
            "LAY107", f"{name!r}: a rule cuts axis {split.axis}, but the tensor has shape {part}"
        )
    before = rank * part[axis]
    total = size * part[axis]
    offset = [before if k == axis else 0 for k in range(len(part))]
    shape = [total if k == axis else n for k, n in enumerate(part)]
    placed = replace(shard, global_shape=shape, offset=map_add(shard.offset, offset))
    return placed if split.size is None else _unpadded(name, placed, axis, split.size)


def _unpadded(name: str, shard: Shard, axis: int, size: int) -> Shard:
    """A shard without what lies beyond ``size`` on an axis."""
    padded = shard.global_shape[axis]
    if not 0 <= size <= padded:
        raise LayoutError(
            "LAY107", f"{name!r}: axis {axis} has {padded} entries on all ranks, fewer than {size}"
        )
    if shard.flat_range is not None:
        raise LayoutError("LAY107", f"{name!r}: a flattened shard cannot be freed of its padding")
    start = min(shard.offset[axis], size)
    stop = min(shard.offset[axis] + shard.tensor.shape[axis], size)
    offset = [start if k == axis else a for k, a in enumerate(shard.offset)]
    shape = [size if k == axis else n for k, n in enumerate(shard.global_shape)]
    tensor = shard.tensor.narrow(axis, 0, stop - start)
    return Shard(shard.key, tensor, shape, offset, state=shard.state)
