# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From bounds to a dense boolean mask, the form everybody can check by eye.

O(Sq * Sk) memory: for small sizes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask.mask.lowering import lower

BLOCK = 128
"""Rows and columns of one entry of a block mask."""

MAX_DENSE_ELEMENTS = 2**28
"""Default limit on the elements of one dense mask (256 MiB of booleans)."""


def bounds_to_dense(
    bounds: Tensor | None,
    causal: bool,
    seqlen_q: int,
    seqlen_k: int,
    block_mask: Tensor | None = None,
    *,
    rows: tuple[int, int] | None = None,
    max_elements: int | None = MAX_DENSE_ELEMENTS,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the dense mask of some bounds and a block mask, True where a row sees a column.

    Args:
        bounds: int32 `[B, Hm, Sk, C]` or None, see `lower`.
        causal: whether the causal triangle (aligned to the bottom right) is hidden.
        seqlen_q: Sq, number of query rows.
        seqlen_k: Sk, number of key columns.
        block_mask: integer `[B, Hm, ceil(Sq/128), ceil(Sk/128)]`, 0 hides a block of 128 x 128,
            or None.
        rows: (start, stop), to return only these rows.
        max_elements: refuse to build a larger result; None for no limit.
        device: where to put the result if neither tensor is given.

    Returns:
        bool `[B, Hm, Sq, Sk]`, with the larger batch and the larger number of heads of the two
        tensors.

    Raises:
        ValueError: if the result would have more than `max_elements` elements.
    """
    if bounds is None and block_mask is not None:
        device = block_mask.device
    lowered = lower(bounds, causal, seqlen_q, seqlen_k, device=device)
    return lowered_to_dense(lowered, seqlen_q, block_mask, rows=rows, max_elements=max_elements)


def lowered_to_dense(
    lowered: Tensor,
    seqlen_q: int,
    block_mask: Tensor | None = None,
    *,
    rows: tuple[int, int] | None = None,
    max_elements: int | None = MAX_DENSE_ELEMENTS,
) -> Tensor:
    """As `bounds_to_dense`, from lowered bounds int32 `[B, Hm, 4, Sk]`."""
    start, stop = (0, seqlen_q) if rows is None else rows
    seqlen_k = lowered.shape[-1]
    batch, heads = lowered.shape[:2]
    if block_mask is not None:
        batch, heads = max(batch, block_mask.shape[0]), max(heads, block_mask.shape[1])
    elements = batch * heads * (stop - start) * seqlen_k
    if max_elements is not None and elements > max_elements:
        raise ValueError(
            f"a dense mask of [{batch}, {heads}, {stop - start}, {seqlen_k}] has "
            f"{elements} elements, more than the limit max_elements={max_elements}; "
            f"ask for fewer rows, or raise the limit"
        )
    row = torch.arange(start, stop, dtype=torch.int32, device=lowered.device)[:, None]
    lts, lte, uts, ute = lowered.unsqueeze(-2).unbind(2)
    visible = ~(((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute)))
    if block_mask is None:
        return visible
    return share_heads(visible, heads) & share_heads(
        expand_block_mask(block_mask, (start, stop), seqlen_k), heads
    )


def expand_block_mask(block_mask: Tensor, rows: tuple[int, int], seqlen_k: int) -> Tensor:
    """Return the block mask per element, bool `[B, Hm, stop - start, Sk]`, True is kept."""
    row_block = torch.arange(*rows, device=block_mask.device) // BLOCK
    column_block = torch.arange(seqlen_k, device=block_mask.device) // BLOCK
    return (block_mask != 0)[..., row_block[:, None], column_block]


def share_heads(tensor: Tensor, heads: int) -> Tensor:
    """Repeat dimension 1 up to `heads`: head h comes from head h // (heads // Hm)."""
    present = tensor.shape[1]
    return tensor if present == heads else tensor.repeat_interleave(heads // present, dim=1)
