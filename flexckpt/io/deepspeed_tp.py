# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where tensor-parallel parts of DeepSpeed parameters lie, by the rules in a checkpoint."""

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from flexckpt.boxes import Box, box_at, full_box
from flexckpt.errors import CheckpointError

Shape = tuple[int, ...]


class Part(NamedTuple):
    """A box of a rank's local tensor, and where it starts in the whole parameter."""

    local: Box
    offset: tuple[int, ...]


class Placement(NamedTuple):
    """A whole parameter.

    Attributes:
        shape: of the whole.
        ranks: by tensor-parallel rank, what of its local tensor lies where; empty where another
            rank holds the same.
    """

    shape: Shape
    ranks: list[list[Part]]


class Rules:
    """The rules that a checkpoint states under ``universal_checkpoint_info``.

    Args:
        info: the rules; None if there are none, which is fine for one tensor-parallel rank.

    Raises:
        CheckpointError: CKP103 if the rules are malformed.
    """

    def __init__(self, info: Mapping[str, Any] | None) -> None:
        self.stated = info is not None
        info = info or {}
        self.replicated = _patterns(info, "tp_replicated_parameter_patterns")
        self.rows = _patterns(info, "parameter_with_row_parallelism_patterns")
        self.halves = _patterns(info, "parameter_with_2_sub_params_cat_dim_0")
        self.averaged = _patterns(info, "parameter_to_average_patterns")
        self.vocabulary = _patterns(info, "vocabulary_parameter_patterns")
        self.unsupported = _patterns(info, "autotp_unsupported_parameter_patterns")
        self.vocabulary_size = info.get("original_vocab_size")
        if not _counts([self.vocabulary_size or 0], 1):
            what = f"original_vocab_size is {self.vocabulary_size!r}"
            raise CheckpointError("CKP103", f"universal_checkpoint_info: {what}")
        self.widths = _table(info, "sub_param_shard_widths")
        self.subs = _sub_parameters(info)
        self.affine = _table(_table(info, "affine_map"), "params")

    def place(self, name: str, shapes: Sequence[Shape]) -> Placement:
        """The whole parameter that ranks hold parts of.

        Args:
            name: of the parameter.
            shapes: of the local tensors, by tensor-parallel rank.

        Raises:
            CheckpointError: CKP109 if the rules are missing or ask for arithmetic, CKP202 if they
                do not fit the shapes.
        """
        if len(shapes) == 1:
            return Placement(shapes[0], [[Part(full_box(shapes[0]), (0,) * len(shapes[0]))]])
        self._check_supported(name)
        if _matches(self.replicated, name):
            if len(set(shapes)) > 1:
                raise CheckpointError(
                    "CKP202", f"{name!r} is replicated, but has the shapes {sorted(set(shapes))}"
                )
            first = Part(full_box(shapes[0]), (0,) * len(shapes[0]))
            return Placement(shapes[0], [[first], *([] for _ in shapes[1:])])
        axis, widths = self._cut(name, shapes)
        placement = _side_by_side(name, shapes, axis, widths)
        return self._without_padding(name, placement)

    def _check_supported(self, name: str) -> None:
        if not self.stated:
            raise CheckpointError(
                "CKP109",
                f"{name!r} is cut over several tensor-parallel ranks, but the checkpoint has no "
                "universal_checkpoint_info that says along which axis",
            )
        scaled = any(
            re.match(pattern, name) and _is_scaled(affine)
            for pattern, affine in self.affine.items()
        )
        if scaled or _matches(self.averaged + self.unsupported, name):
            raise CheckpointError(
                "CKP109",
                f"the parts of {name!r} must be averaged, scaled or cut in a way that "
                "universal_checkpoint_info cannot say; this is not supported",
            )

    def _cut(self, name: str, shapes: Sequence[Shape]) -> tuple[int, list[list[int]]]:
        """The axis, and for every sub-parameter its width on every rank."""
        for sub in self.subs:
            for pattern in sub.patterns:
                if not re.match(pattern, name):
                    continue
                if sub.axes != len(shapes[0]):
                    raise CheckpointError(
                        "CKP109",
                        f"{name!r}: its sub-parameters are stated for {sub.axes} axes, not for "
                        f"its {len(shapes[0])}",
                    )
                return sub.axis, self._sub_widths(name, pattern, sub.sizes, len(shapes))
        if _matches(self.halves, name):
            return 0, [[shape[0] // 2 for shape in shapes]] * 2
        axis = 1 if _matches(self.rows, name) else 0
        if any(len(shape) <= axis for shape in shapes):
            raise CheckpointError(
                "CKP202", f"{name!r} is cut along axis {axis}, but has shape {shapes[0]}"
            )
        return axis, [[shape[axis] for shape in shapes]]

    def _sub_widths(self, name: str, pattern: str, sizes: Any, ranks: int) -> list[list[int]]:
        stated = self.widths.get(pattern)
        if stated is not None:
            if not isinstance(stated, list | tuple) or not all(_counts(w, ranks) for w in stated):
                raise CheckpointError(
                    "CKP202", f"{name!r}: sub_param_shard_widths must state a width for each rank"
                )
            return [list(widths) for widths in stated]
        if not isinstance(sizes, list | tuple) or not _counts(sizes, len(sizes)):
            raise CheckpointError(
                "CKP109", f"{name!r}: the sizes of its sub-parameters are not stated"
            )
        if any(size % ranks for size in sizes):
            raise CheckpointError(
                "CKP202", f"{name!r}: sub-parameters {list(sizes)} do not divide by {ranks} ranks"
            )
        return [[size // ranks] * ranks for size in sizes]

    def _without_padding(self, name: str, placement: Placement) -> Placement:
        """Drop the rows behind the end of the vocabulary."""
        rows = self.vocabulary_size
        if rows is None or not _matches(self.vocabulary, name):
            return placement
        shape = (min(rows, placement.shape[0]), *placement.shape[1:])
        ranks = []
        for parts in placement.ranks:
            kept = []
            for local, offset in parts:
                height = min(local.shape[0], shape[0] - offset[0])
                if height > 0:
                    box = box_at(local.start, (height, *local.shape[1:]))
                    kept.append(Part(box, offset))
            ranks.append(kept)
        return Placement(shape, ranks)


def _side_by_side(
    name: str, shapes: Sequence[Shape], axis: int, widths: list[list[int]]
) -> Placement:
    """Sub-parameters behind one another along ``axis``, each cut over the ranks."""
    rest = {(*s[:axis], *s[axis + 1 :]) for s in shapes}
    if len(rest) > 1 or any(len(s) <= axis for s in shapes):
        raise CheckpointError(
            "CKP202", f"{name!r}: local shapes {sorted(set(shapes))} do not join along axis {axis}"
        )
    ranks: list[list[Part]] = []
    for rank, shape in enumerate(shapes):
        if sum(w[rank] for w in widths) != shape[axis]:
            raise CheckpointError(
                "CKP202",
                f"{name!r}: rank {rank} holds {shape[axis]} along axis {axis}, its sub-parameters "
                f"make {sum(w[rank] for w in widths)}",
            )
        parts, inside, before = [], 0, 0
        for sub in widths:
            start = [0] * len(shape)
            start[axis] = inside
            box = box_at(start, (*shape[:axis], sub[rank], *shape[axis + 1 :]))
            offset = [0] * len(shape)
            offset[axis] = before + sum(sub[:rank])
            if prod(box.shape):
                parts.append(Part(box, tuple(offset)))
            inside += sub[rank]
            before += sum(sub)
        ranks.append(parts)
    whole = (*shapes[0][:axis], sum(map(sum, widths)), *shapes[0][axis + 1 :])
    return Placement(whole, ranks)


def _patterns(info: Mapping[str, Any], key: str) -> list[str]:
    found = info.get(key) or []
    if not isinstance(found, list | tuple | dict):
        raise CheckpointError("CKP103", f"universal_checkpoint_info: {key} must be a list")
    found = list(found)
    for pattern in found:
        _check_pattern(pattern, key)
    return found


def _table(info: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = info.get(key) or {}
    if not isinstance(table, dict):
        raise CheckpointError("CKP103", f"universal_checkpoint_info: {key} must be a dict")
    return table


class _SubParameters(NamedTuple):
    """Parameters made of several: patterns, number of axes, the axis, sizes along it."""

    patterns: list[str]
    axes: int
    axis: int
    sizes: Any


def _sub_parameters(info: Mapping[str, Any]) -> list[_SubParameters]:
    key, found = "parameter_with_sub_params", []
    try:
        for sub in info.get(key) or []:
            patterns, shape, axis = list(sub["patterns"]), list(sub["shape"]), sub["partition_dim"]
            axis = range(len(shape))[axis]
            found.append(_SubParameters(patterns, len(shape), axis, shape[axis]))
    except (KeyError, TypeError, IndexError):
        raise CheckpointError(
            "CKP103",
            f"universal_checkpoint_info: an entry of {key} needs patterns, shape, partition_dim",
        ) from None
    for pattern in (pattern for sub in found for pattern in sub.patterns):
        _check_pattern(pattern, key)
    return found


def _check_pattern(pattern: Any, key: str) -> None:
    """Patterns come from a file: one that could keep the matcher busy for ever is refused."""
    try:
        re.compile(pattern)
        repetitions = len(re.findall(r"(?<!\\)[*+{]", pattern))
        repeated_group = re.search(r"(?<!\\)\)[*+{]", pattern)
        harmless = len(pattern) < 1000 and repetitions <= 3 and not repeated_group
    except (re.error, TypeError, RecursionError):
        harmless = False
    if not harmless:
        raise CheckpointError(
            "CKP103", f"universal_checkpoint_info: {key} holds the pattern {pattern!r}"
        )


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(re.match(pattern, name) for pattern in patterns)


def _counts(values: Any, length: int) -> bool:
    """Whether these are ``length`` sizes."""
    return (
        isinstance(values, list | tuple)
        and len(values) == length
        and all(type(n) is int and n >= 0 for n in values)
    )


def _is_scaled(affine: Any) -> bool:
    """Whether a piece of an affine map of DeepSpeed multiplies its elements."""
    try:
        pieces = [piece for rank in affine["ranks"].values() for piece in rank["pieces"]]
        return any(piece.get("scale", 1.0) != 1.0 for piece in pieces)
    except (KeyError, TypeError, AttributeError):
        raise CheckpointError(
            "CKP103", "universal_checkpoint_info: an affine map must have ranks with pieces"
        ) from None
