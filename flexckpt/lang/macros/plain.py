# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Statements without a flag word: rename, concatenate, split, and one operation on one tensor."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.macros import stacking
from flexckpt.lang.routine import Builder

_ONE_TO_ONE = ("permute", "dtype", "reshape", "pad", "unpad", "src_dtype")


def build(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
    _axis: int,
    _parts: tuple[int, int],
) -> None:
    if "stack" in values or "unstack" in values:
        key = "stack" if "stack" in values else "unstack"
        stacking.add(builder, key, left, right, values[key], note)
    elif len(left) == len(right) == 1 and "sizes" not in values:
        _one_to_one(builder, left, right, values, note)
    else:
        _several(builder, left, right, values, note)


def _several(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
) -> None:
    for key in _ONE_TO_ONE:
        if key in values:
            raise AoaError("AOA103", f"{key} takes one name on each side")
    axis, sizes = values.get("axis"), values.get("sizes")  # no axis: it expands, but does not run
    count = max(len(left), len(right))
    proportions = None
    if sizes == "equal":
        proportions, sizes = (1,) * count, None
    if sizes is not None and len(sizes) != count:
        raise AoaError("AOA103", f"sizes has {len(sizes)} lengths for {count} names")
    if len(left) > 1:
        builder.step("concat", left, right, (axis, proportions, sizes), note)
    else:
        builder.step("split", left, right, (axis, sizes), note)


def _one_to_one(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
) -> None:
    if "permute" in values:
        builder.step("permute", left, right, values["permute"], note)
    elif "dtype" in values:
        builder.step("cast", left, right, (None, values["dtype"]), note)
    elif "src_dtype" in values:
        builder.step("cast", left, right, (values["src_dtype"], values["dst_dtype"]), note)
    elif "reshape" in values:
        builder.step("reshape", left, right, values["reshape"], note)
    elif "pad" in values:
        builder.step("pad", left, right, (_axis_of(values), values["pad"]), note)
    elif "unpad" in values:
        rest = builder.temporary("{}_unpad_rest", left[0])
        builder.step("unpad", left, (*right, rest), (_axis_of(values), values["unpad"]), note)
    else:  # axis alone does nothing
        builder.step("rename", left, right, None, note)


def _axis_of(values: Mapping[str, Any]) -> int:
    if "axis" not in values:
        raise AoaError("AOA103", "pad and unpad need axis=")
    return int(values["axis"])
