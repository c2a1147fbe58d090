# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tensors fused in a block per rank, ``[A_r | B_r | ...]``.

Both ``fused_ffn`` and ``fused_qkv_old`` are of this kind.
"""

from collections.abc import Sequence

from flexckpt.errors import AoaError
from flexckpt.lang.routine import Builder


def build_blocks(
    builder: Builder,
    flag: str,
    left: Sequence[int],
    right: Sequence[int],
    axis: int,
    components: Sequence[tuple[str, int]],
    parts: tuple[int, int],
) -> None:
    """Steps from ``parts[0]`` blocks to ``parts[1]``.

    Args:
        components: name and number of equal pieces of each tensor that is fused.
    """
    counts = tuple(n for _, n in components)
    for degree in parts:
        for name, n in components:
            if n % degree:
                raise AoaError(
                    "AOA203", f"{flag}: {n} pieces of {name} cannot be dealt to {degree} ranks"
                )
    pieces = [
        [builder.temporary(f"{flag}_tmp.{name}_{i}") for i in range(n)] for name, n in components
    ]

    def blocks(degree: int) -> list[int]:
        return [
            slot
            for rank in range(degree)
            for names, n in zip(pieces, counts, strict=True)
            for slot in names[rank * n // degree : (rank + 1) * n // degree]
        ]

    if len(left) > 1:
        joined = builder.temporary(".".join(["{}"] * len(left)) + ".tmp", *left)
        builder.concat(left, joined, axis, counts)
        builder.split(joined, blocks(1), axis)
        builder.concat(blocks(parts[1]), right[0], axis)
        return
    builder.split(left[0], blocks(parts[0]), axis)
    if len(right) == 1:
        builder.concat(blocks(parts[1]), right[0], axis)
        return
    for names, slot in zip(pieces, right, strict=True):
        builder.concat(names, slot, axis)
