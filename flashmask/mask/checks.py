# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The rules on the parts of a mask. They read shapes and dtypes, never values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from flashmask.mask.dense import BLOCK


def check_bounds(bounds: Tensor, causal: bool) -> None:
    """Check dtype, rank and number of bounds per column.

    Raises:
        TypeError: not a tensor, or not int32.
        ValueError: not `[B, Hm, Sk, C]`, or a C that does not go with `causal`.
    """
    _check_integer_tensor("startend_row_indices", bounds, (torch.int32,))
    if bounds.dim() != 4:
        raise ValueError(
            f"startend_row_indices must have 4 dimensions [B, Hm, Sk, C], "
            f"but its shape is {tuple(bounds.shape)}; reshape it"
        )
    allowed = (1, 2) if causal else (2, 4)
    if bounds.shape[3] not in allowed:
        raise ValueError(
            f"startend_row_indices must have {allowed[0]} or {allowed[1]} bounds per column with "
            f"causal={causal}, but has {bounds.shape[3]}; see the table in docs/masks.md"
        )


def check_sizes(bounds: Tensor | None, seqlen_q: int, seqlen_k: int) -> None:
    """Check that the sizes are such, and that the bounds have that many columns.

    Raises:
        TypeError: a size is not an integer.
        ValueError: a size is negative, or the bounds do not have `seqlen_k` columns.
    """
    check_count("seqlen_q", seqlen_q)
    check_count("seqlen_k", seqlen_k)
    if bounds is not None and bounds.shape[2] != seqlen_k:
        raise ValueError(
            f"startend_row_indices must have one entry per key column, seqlen_k={seqlen_k}, "
            f"but its shape is {tuple(bounds.shape)}; leave seqlen_k out to read it from there"
        )


def check_block_mask(
    block_mask: Tensor, bounds: Tensor | None, seqlen_q: int, seqlen_k: int
) -> None:
    """Check dtype and shape of a block mask, and that it goes with the bounds.

    Raises:
        TypeError: not a tensor, or not int32.
        ValueError: not `[B, Hm, ceil(Sq/128), ceil(Sk/128)]`, or a batch, a number of heads or a
            device that does not go with that of the bounds.
    """
    _check_integer_tensor("block_mask", block_mask, (torch.int32,))
    blocks = (-(-seqlen_q // BLOCK), -(-seqlen_k // BLOCK))
    if block_mask.dim() != 4 or tuple(block_mask.shape[2:]) != blocks:
        raise ValueError(
            f"block_mask must be [B, Hm, {blocks[0]}, {blocks[1]}] for seqlen_q={seqlen_q} and "
            f"seqlen_k={seqlen_k}, but its shape is {tuple(block_mask.shape)}; build it for these "
            f"lengths"
        )
    if bounds is None:
        return
    if bounds.device != block_mask.device:
        raise ValueError(
            f"block_mask must be on the device of startend_row_indices, {bounds.device}, "
            f"but is on {block_mask.device}; move it there with .to"
        )
    if bounds.shape[0] != block_mask.shape[0] and 1 not in (bounds.shape[0], block_mask.shape[0]):
        raise ValueError(
            f"block_mask must have a batch of 1 or {bounds.shape[0]}, that of "
            f"startend_row_indices, but has {block_mask.shape[0]}; expand or slice it"
        )
    few, many = sorted((bounds.shape[1], block_mask.shape[1]))
    if few != many and (few == 0 or many % few):
        raise ValueError(
            f"the heads of block_mask, {block_mask.shape[1]}, and of startend_row_indices, "
            f"{bounds.shape[1]}, must divide one another; expand or slice dimension 1 of either"
        )


def check_count(name: str, value: Any, minimum: int = 0, maximum: int | None = None) -> None:
    """Check that an argument is an integer in a range.

    Raises:
        TypeError: not an integer.
        ValueError: outside of [minimum, maximum].
    """
    whole = isinstance(value, int | torch.SymInt) or hasattr(type(value), "__index__")  # NumPy's
    if not whole or isinstance(value, bool | Tensor):
        raise TypeError(f"{name} must be an integer, but is {value!r}")
    if value < minimum or (maximum is not None and value > maximum):
        upper = "" if maximum is None else f" and at most {maximum}"
        raise ValueError(f"{name} must be at least {minimum}{upper}, but is {value}")


def _check_integer_tensor(name: str, tensor: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name} must be a tensor, but is a {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise TypeError(
            f"{name} must have dtype {dtypes[0]}, but has {tensor.dtype}; use .to({dtypes[0]})"
        )
