# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The attentions to choose from: FlashMask, and what torch itself offers for the same mask.

Each takes query `[B, S, Hq, D]`, key and value `[B, S, Hk, D]` and its own form of the mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import flashmask

Mask = Any  # FlashMask, a dense bool tensor, or a BlockMask, as the attention wants it
Attend = Callable[[Tensor, Tensor, Tensor, Mask], Tensor]

TITLES = {
    "flashmask": "FlashMask",
    "sdpa": "SDPA, dense mask",
    "loop": "SDPA per document",
    "flex": "FlexAttention",
}


def attend_flashmask(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    return flashmask.flashmask_attention(query, key, value, mask)


def attend_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def attend_loop(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    """Run causal attention document by document.

    The fastest that torch offers in eager mode. The mask is the list of document lengths, so
    under torch.compile every packing would be a new program.
    """
    parts = zip(*(x.transpose(1, 2).split(mask, dim=2) for x in (query, key, value)), strict=True)
    outs = [F.scaled_dot_product_attention(*p, is_causal=True, enable_gqa=True) for p in parts]
    return torch.cat(outs, dim=2).transpose(1, 2)


def attend_flex(query: Tensor, key: Tensor, value: Tensor, mask: Mask) -> Tensor:
    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    return flex_attention(query, key, value, block_mask=mask, enable_gqa=True).transpose(1, 2)


ATTEND: dict[str, Attend] = {
    "flashmask": attend_flashmask,
    "sdpa": attend_sdpa,
    "loop": attend_loop,
    "flex": attend_flex,
}


def build_mask(kind: str, lengths: Sequence[int]) -> Mask:
    """Return the mask of packed documents in the form that an attention wants."""
    if kind == "loop":
        return list(lengths)
    mask = flashmask.masks.causal_document(lengths)
    if kind == "flashmask":
        return mask.prepared()  # plan once, use in all layers, forward and backward
    if kind == "sdpa":
        document = torch.repeat_interleave(torch.tensor(lengths))
        return (document[:, None] == document).tril_()[None, None]
    size = mask.seqlen_q
    return create_block_mask(mask.to_mask_mod(), None, None, size, size, device="cpu")


def mask_bytes(mask: Mask) -> int:
    """Return how much memory a mask takes."""
    if isinstance(mask, Tensor):
        return mask.nbytes
    if isinstance(mask, flashmask.FlashMask):
        return mask.startend_row_indices.nbytes + mask.plan.nbytes
    if isinstance(mask, BlockMask):
        return sum(part.nbytes for part in mask.as_tuple() if isinstance(part, Tensor))
    return 8 * len(mask)
