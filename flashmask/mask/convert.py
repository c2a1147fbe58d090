# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks from and to dense booleans and FlexAttention's `mask_mod` and `BlockMask`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from flashmask.mask.dense import BLOCK, MAX_DENSE_ELEMENTS
from flashmask.mask.encode import mask_of_hidden
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.intervals import (
    HiddenRows,
    concatenate,
    hidden_by_dense,
    require_two_intervals,
)

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

MAX_MOD_ELEMENTS = 2**22
"""Default limit on the elements of one evaluation of a `mask_mod` (a few temporaries of 4 MiB)."""


def from_dense(visible: Tensor) -> FlashMask:
    """Return the mask equal to a dense one.

    Args:
        visible: bool `[Sq, Sk]`, `[B, Sq, Sk]` or `[B, Hm, Sq, Sk]`, True where a row sees a key.

    Raises:
        TypeError: not a boolean tensor.
        ValueError: a column hides more than two separate intervals of rows; the message names the
            first such column and its intervals.
    """
    hidden = hidden_by_dense(four_dimensions(visible))
    require_two_intervals(hidden, "the dense mask")
    return mask_of_hidden(hidden)


def to_dense(mask: FlashMask, *, max_elements: int | None = MAX_DENSE_ELEMENTS) -> Tensor:
    """Return the mask as bool `[B, Hm, Sq, Sk]`, True where a row sees a key.

    Raises:
        ValueError: the result would have more than `max_elements` elements.
    """
    return mask.to_dense(max_elements=max_elements)


def from_mask_mod(
    mask_mod: MaskMod,
    batch: int | None,
    heads: int | None,
    seqlen_q: int,
    seqlen_k: int,
    *,
    max_dense_elements: int = MAX_MOD_ELEMENTS,
    device: torch.device | str | None = None,
) -> FlashMask:
    """Return the mask equal to a FlexAttention `mask_mod`.

    It is evaluated in blocks of columns, never on more than `max_dense_elements` at once, unless
    one column of all batch entries and heads has more.

    Args:
        mask_mod: `(b, h, q_idx, kv_idx) -> bool`, True where a row sees a key. It is called with
            tensors that broadcast: b and h of 0 dimensions, q_idx `[rows, 1]`, kv_idx
            `[1, columns]`.
        batch: B, None if the mask is the same for all batch entries.
        heads: number of query heads (or of mask heads), None if the mask is the same for all.
        seqlen_q: Sq.
        seqlen_k: Sk.
        max_dense_elements: elements to evaluate at once.
        device: where the tensors that `mask_mod` reads are.

    Raises:
        ValueError: a column hides more than two separate intervals of rows; the message names the
            first such column and its intervals.
    """
    hidden = hidden_by_mask_mod(
        mask_mod,
        batch or 1,
        heads or 1,
        seqlen_q,
        seqlen_k,
        max_dense_elements=max_dense_elements,
        device=device,
        max_intervals=2,
    )
    return mask_of_hidden(hidden)


def hidden_by_mask_mod(
    mask_mod: MaskMod,
    batch: int,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    max_dense_elements: int = MAX_MOD_ELEMENTS,
    device: torch.device | str | None = None,
    max_intervals: int | None = None,
) -> HiddenRows:
    """Return the hidden rows of a `mask_mod`; see `from_mask_mod`.

    Args:
        max_intervals: 2 to fail at the first column with more; None for no limit.
    """
    rows = torch.arange(seqlen_q, device=device)
    step = max(1, max_dense_elements // max(1, batch * heads * seqlen_q))
    blocks = []
    for start in range(0, max(1, seqlen_k), step):
        columns = torch.arange(start, min(start + step, seqlen_k), device=device)
        visible = torch.stack(
            [
                torch.stack([evaluate(mask_mod, b, h, rows, columns) for h in range(heads)])
                for b in range(batch)
            ]
        )
        hidden = hidden_by_dense(visible)
        if max_intervals is not None:
            require_two_intervals(hidden, "the mask_mod", start)
        blocks.append(hidden)
    return concatenate(blocks)


def from_block_mask(block_mask: BlockMask) -> FlashMask:
    """Return the mask equal to a FlexAttention `BlockMask`.

    Its `mask_mod` is evaluated in its partial blocks only, one column of blocks at a time; full
    blocks are visible and absent ones hidden, whatever `mask_mod` says of them.

    Raises:
        ValueError: a column hides more than two separate intervals of rows; the message names the
            first such column and its intervals.
    """
    seqlen_q, seqlen_k = block_mask.seq_lengths
    block_rows, block_columns = block_mask.BLOCK_SIZE
    partial = _listed_blocks(block_mask.kv_num_blocks, block_mask.kv_indices)
    full = torch.zeros_like(partial)
    if block_mask.full_kv_num_blocks is not None and block_mask.full_kv_indices is not None:
        full = _listed_blocks(block_mask.full_kv_num_blocks, block_mask.full_kv_indices)
    batch, heads = partial.shape[:2]
    rows = torch.arange(seqlen_q, device=partial.device)
    row_block = rows // block_rows
    blocks = []
    for start in range(0, seqlen_k, block_columns):
        columns = torch.arange(start, min(start + block_columns, seqlen_k), device=partial.device)
        block = start // block_columns
        visible = full[:, :, row_block, block, None].repeat(1, 1, 1, len(columns))
        for b in range(batch):
            for h in range(heads):
                chosen = rows[partial[b, h, row_block, block]]
                visible[b, h, chosen] = evaluate(block_mask.mask_mod, b, h, chosen, columns)
        hidden = hidden_by_dense(visible)
        require_two_intervals(hidden, "the BlockMask", start)
        blocks.append(hidden)
    return mask_of_hidden(concatenate(blocks))


def to_mask_mod(mask: FlashMask, *, num_heads: int | None = None) -> MaskMod:
    """Return the mask as a FlexAttention `mask_mod(b, h, q_idx, kv_idx)`.

    A closure over the bounds, for `create_block_mask` and `flex_attention`.

    Args:
        mask: the mask.
        num_heads: number of query heads, to share mask heads among them; by default that of mask
            heads.

    Raises:
        ValueError: `num_heads` is not a multiple of the number of mask heads.
    """
    num_heads = mask.heads if num_heads is None else num_heads
    if mask.heads == 0 or num_heads % mask.heads:
        raise ValueError(
            f"num_heads must be a multiple of {mask.heads}, the number of mask heads, "
            f"but is {num_heads}"
        )
    lts, lte, uts, ute = mask.lowered().unbind(2)
    block_mask = mask.block_mask

    def entry_of(tensor: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        # One entry, or one mask head, stands for any: its index is 0 whatever b or h is.
        entries, heads = tensor.shape[:2]
        return b * (entries > 1), h // (num_heads // heads) if heads > 1 else h * 0

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        at = (*entry_of(lts, b, h), kv_idx)
        hidden = ((q_idx >= lts[at]) & (q_idx < lte[at])) | ((q_idx >= uts[at]) & (q_idx < ute[at]))
        if block_mask is None:
            return ~hidden
        block = (*entry_of(block_mask, b, h), q_idx // BLOCK, kv_idx // BLOCK)
        return ~hidden & (block_mask[block] != 0)

    return mask_mod


def evaluate(mask_mod: MaskMod, b: int, h: int, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the values of a `mask_mod` on some rows and columns, bool `[rows, columns]`."""
    entry, head = rows.new_tensor(b), rows.new_tensor(h)
    visible = torch.as_tensor(mask_mod(entry, head, rows[:, None], columns[None, :]))
    return visible.to(rows.device, torch.bool).expand(len(rows), len(columns))


def four_dimensions(visible: Tensor) -> Tensor:
    """Return a dense mask as `[B, Hm, Sq, Sk]`."""
    if visible.dtype != torch.bool:
        raise TypeError(
            f"a dense mask must be a boolean tensor, True where a row sees a key, "
            f"but has dtype {visible.dtype}"
        )
    if visible.dim() == 2:
        return visible[None, None]
    if visible.dim() == 3:
        return visible[:, None]
    if visible.dim() == 4:
        return visible
    raise ValueError(
        f"a dense mask must be [Sq, Sk], [B, Sq, Sk] or [B, Hm, Sq, Sk], "
        f"but its shape is {tuple(visible.shape)}"
    )


def _listed_blocks(counts: Tensor, indices: Tensor) -> Tensor:
    """Return which blocks a list holds, bool `[B, H, row blocks, column blocks]`."""
    blocks = indices.shape[-1]
    used = torch.arange(blocks, device=indices.device) < counts[..., None]
    # Entries past the count are garbage and go to one column too many.
    target = indices.long().masked_fill(~used, blocks)
    listed = torch.zeros((*indices.shape[:-1], blocks + 1), dtype=torch.bool, device=indices.device)
    return listed.scatter(-1, target, True)[..., :blocks]
