# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``fused_qkv``: every group of query heads is followed by its key head and its value head."""

from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.errors import AoaError
from flexckpt.lang.macros.heads import heads_of
from flexckpt.lang.routine import Builder


def build(
    builder: Builder,
    left: Sequence[int],
    right: Sequence[int],
    values: Mapping[str, Any],
    note: str,
    axis: int,
    _parts: tuple[int, int],
) -> None:
    if (len(left), len(right)) not in ((3, 1), (1, 3)):
        raise AoaError(
            "AOA203",
            f"fused_qkv is 'q, k, v -> f' or 'f -> q, k, v', not {len(left)} to {len(right)}; a "
            f"fused tensor that stays fused needs no statement",
        )
    heads, groups = heads_of(values, "fused_qkv")
    axis = values.get("axis", axis)
    apart, fused = (left, right[0]) if len(left) == 3 else (right, left[0])
    counts = heads, groups, groups
    parts = [
        [builder.temporary(f"{{}}{i}", slot) for i in range(n)]
        for slot, n in zip(apart, counts, strict=True)
    ]
    queries, keys, vals = parts
    width = heads // groups
    order = [
        slot
        for g in range(groups)
        for slot in (*queries[g * width : (g + 1) * width], keys[g], vals[g])
    ]
    if len(left) == 3:
        for slot, names in zip(apart, parts, strict=True):
            builder.split(slot, names, axis)
        builder.concat(order, fused, axis)
    else:
        builder.split(fused, order, axis)
        for slot, names in zip(apart, parts, strict=True):
            builder.concat(names, slot, axis)
