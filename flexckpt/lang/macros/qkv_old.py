# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``fused_qkv_old``: queries, keys and values side by side on every rank, ``[Q_r | K_r | V_r]``."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.macros.blocks import build_blocks
from flexckpt.lang.macros.heads import heads_of
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
    if (len(left), len(right)) not in ((3, 1), (1, 3), (1, 1)):
        raise AoaError(
            "AOA203",
            f"fused_qkv_old is 'q, k, v -> f', 'f -> q, k, v' or 'f -> f', not {len(left)} to "
            f"{len(right)}",
        )
    heads, groups = heads_of(values, "fused_qkv_old")
    axis = values.get("axis", axis)
    components = ("Q", heads), ("K", groups), ("V", groups)
    build_blocks(builder, "fused_qkv_old", left, right, axis, components, parts)
