# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Shape of the tensor that holds a plan: a function of the sequence lengths only.

The same arithmetic is ``PlanLayout`` in csrc/plan.h.
"""

from __future__ import annotations

from torch import Tensor

TILE = 128
PLAN_HEADER = 16
PLAN_UNIT = 16


def plan_length(seqlen_q: int, seqlen_k: int) -> int:
    """Number of int32 elements which a plan has per mask head.

    A header; four lowered bounds per key column, padded to whole tiles; their minima and maxima per
    tile and per 16 columns; the row and the column tasks, each with a cost. Works on symbolic
    sizes.
    """
    padded = (seqlen_k + TILE - 1) // TILE * TILE
    rows = (seqlen_q + TILE - 1) // TILE
    columns = padded // TILE
    summaries = 8 * columns + 8 * (padded // PLAN_UNIT)
    return PLAN_HEADER + 4 * padded + summaries + rows + columns


def plan_shape(
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    seqlen_q: int,
    seqlen_k: int,
) -> list[int]:
    """Shape ``[Bm, Hm, L]`` of a plan: the larger batch and head count of its parts, else 1."""
    batch, heads = 1, 1
    for part in (startend_row_indices, block_mask):
        if part is not None:
            # A batch of 0 stays 0: there is nothing to plan.
            batch = part.shape[0] if part.shape[0] != 1 else batch
            heads = part.shape[1] if part.shape[1] != 1 else heads
    if startend_row_indices is not None and block_mask is not None:
        heads = max(startend_row_indices.shape[1], block_mask.shape[1])
    return [batch, heads, plan_length(seqlen_q, seqlen_k)]
