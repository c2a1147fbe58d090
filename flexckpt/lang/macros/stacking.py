# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``stack`` joins tensors on a new axis, ``unstack`` takes an axis apart."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.routine import Builder


def build_stack(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
    _axis: int,
    _parts: tuple[int, int],
) -> None:
    axis = values.get("axis", 0)
    add(builder, "stack", left, right, axis, f", stack={axis}")


def build_unstack(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
    _axis: int,
    _parts: tuple[int, int],
) -> None:
    axis = values.get("axis", 0)
    add(builder, "unstack", left, right, axis, f", unstack={axis}")


def add(
    builder: Builder, op: str, left: Sequence[int], right: Sequence[int], axis: int, note: str
) -> None:
    one, side = (right, "right") if op == "stack" else (left, "left")
    if len(one) != 1:
        raise AoaError("AOA203", f"{op} takes one name on the {side}, not {len(one)}")
    builder.step(op, left, right, axis, note)
