# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Combine two masks: succeed where two intervals per column are enough, otherwise say where not."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask.mask.dense import share_heads
from flashmask.mask.encode import mask_of_hidden
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.intervals import (
    HiddenRows,
    hidden_by_lowered,
    intersection,
    require_two_intervals,
    union,
)


def mask_and(a: FlashMask, b: FlashMask) -> FlashMask:
    """Return the mask that is visible where both masks are.

    Batch and mask heads broadcast, block masks are combined too.

    Raises:
        ValueError: the sizes differ, or a column would need more than two hidden intervals. The
            message names the first such column and its intervals.
    """
    _check_same_sizes(a, b)
    hidden = hidden_rows_and(a, b)
    require_two_intervals(hidden, "mask_and(a, b)")
    return mask_of_hidden(hidden, _both_block_masks(a.block_mask, b.block_mask))


def mask_or(a: FlashMask, b: FlashMask) -> FlashMask:
    """Return the mask that is visible where either mask is.

    Batch and mask heads broadcast. Block masks are kept if both masks have the same one.

    Raises:
        ValueError: the sizes differ, a column would need more than two hidden intervals (the
            message names the first such column and its intervals), or the block masks differ.
    """
    _check_same_sizes(a, b)
    if not _same_block_mask(a.block_mask, b.block_mask):
        raise ValueError(
            "mask_or(a, b) needs the same block_mask in both masks: blocks that only one of them "
            "drops cannot be written as bounds"
        )
    hidden = hidden_rows_or(a, b)
    require_two_intervals(hidden, "mask_or(a, b)")
    return mask_of_hidden(hidden, a.block_mask)


def hidden_rows(mask: FlashMask) -> HiddenRows:
    """Return the rows that the bounds of a mask hide; its block mask is not part of that."""
    return hidden_by_lowered(mask.lowered(), mask.seqlen_q)


def hidden_rows_and(a: FlashMask, b: FlashMask) -> HiddenRows:
    """Return the hidden rows of `mask_and`, however many intervals; `split_rows` takes them."""
    return union(hidden_rows(a), hidden_rows(b))


def hidden_rows_or(a: FlashMask, b: FlashMask) -> HiddenRows:
    """Return the hidden rows of `mask_or`, however many intervals; `split_rows` takes them."""
    return intersection(hidden_rows(a), hidden_rows(b))


def _check_same_sizes(a: FlashMask, b: FlashMask) -> None:
    sizes = [(mask.seqlen_q, mask.seqlen_k) for mask in (a, b)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"both masks must have the same seqlen_q and seqlen_k, but have {sizes[0]} and "
            f"{sizes[1]}"
        )
    if a.batch != b.batch and 1 not in (a.batch, b.batch):
        raise ValueError(
            f"both masks must have the same batch, or one of them 1, but have {a.batch} and "
            f"{b.batch}"
        )
    few, many = sorted((a.heads, b.heads))
    if few == 0 or many % few:
        raise ValueError(
            f"the number of mask heads of one mask must divide that of the other, "
            f"but they are {a.heads} and {b.heads}"
        )


def _both_block_masks(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    heads = max(a.shape[1], b.shape[1])
    return ((share_heads(a, heads) != 0) & (share_heads(b, heads) != 0)).to(torch.int32)


def _same_block_mask(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or (a.shape == b.shape and torch.equal(a != 0, b != 0))
