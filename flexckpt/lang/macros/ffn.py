# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``fused_ffn``: gate and up projections side by side on every rank, ``[G_r | U_r]``."""

from collections.abc import Mapping, Sequence
from math import lcm
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.attributes import MAX_COUNT
from flexckpt.lang.macros.blocks import build_blocks
from flexckpt.lang.routine import Builder


def build(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
    axis: int,
    parts: tuple[int, int],
) -> None:
    if (len(left), len(right)) not in ((2, 1), (1, 2), (1, 1)):
        raise AoaError(
            "AOA203",
            f"fused_ffn is 'g, u -> f', 'f -> g, u' or 'f -> f', not {len(left)} to {len(right)}",
        )
    n = lcm(*parts)
    if n > MAX_COUNT:
        message = f"fused_ffn: {parts[0]} and {parts[1]} parts have more than {MAX_COUNT} in common"
        raise AoaError("AOA203", message)
    axis = values.get("axis", axis)
    build_blocks(builder, "fused_ffn", left, right, axis, (("GATE", n), ("UP", n)), parts)
