# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From hidden rows back to bounds, in the smallest form that holds them."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.intervals import HiddenRows, hidden_by_lowered


def encode(lowered: Tensor, seqlen_q: int) -> tuple[Tensor, bool]:
    """Return `(bounds, causal)` with the same meaning and as few bounds per column as possible.

    Args:
        lowered: int32 `[B, Hm, 4, Sk]`, see `lower`.
        seqlen_q: Sq.

    Returns:
        int32 `[B, Hm, Sk, C]` with C in {1, 2, 4}, and the causal flag that goes with it.
    """
    return encode_hidden(hidden_by_lowered(lowered, seqlen_q))


def mask_of_hidden(hidden: HiddenRows, block_mask: Tensor | None = None) -> FlashMask:
    """Return the mask that hides these rows; at most two intervals per column."""
    bounds, causal = encode_hidden(hidden)
    return FlashMask(bounds, causal=causal, block_mask=block_mask, seqlen_q=hidden.seqlen_q)


def encode_hidden(hidden: HiddenRows) -> tuple[Tensor, bool]:
    """As `encode`, from hidden rows with at most two intervals per column.

    The forms are tried from the smallest up. This reads values, so it is for eager code.
    """
    rows, columns = hidden.seqlen_q, hidden.starts.shape[-1]
    (s1, s2), (e1, e2) = _two_slots(hidden.starts, rows), _two_slots(hidden.stops, rows)
    first, second = s1 < e1, s2 < e2

    diagonal = torch.arange(columns, dtype=torch.int32, device=s1.device) - (columns - rows)
    diagonal = diagonal.clamp(0, rows)
    if bool(((diagonal == 0) | ((s1 == 0) & (e1 >= diagonal))).all()):
        # What the triangle does not hide already: the rest of the first interval, and the second.
        rest = torch.maximum(s1, diagonal)
        has_rest = rest < e1
        if not bool((has_rest & second).any()):
            start = torch.where(has_rest, rest, s2)
            stop = torch.where(has_rest, e1, e2)
            if bool((stop == rows).all()):
                return start.unsqueeze(-1), True
            if not _touches_ends(s1, e1, s2, e2, rows):
                return torch.stack((start, stop), dim=-1), True

    at_top = first & (s1 == 0) & (e1 < rows)
    upper_stop = e1.masked_fill(~at_top, 0)
    if _touches_ends(s1, e1, s2, e2, rows):
        lower_start = torch.where(at_top, s2, s1)
        return torch.stack((lower_start, upper_stop), dim=-1), False

    # Two intervals: the upper one goes into the upper slots. One interval: wherever it touches.
    above = at_top | second
    lts, lte = torch.where(above, s2, s1), torch.where(above, e2, e1)
    uts, ute = s1.masked_fill(~above, 0), e1.masked_fill(~above, 0)
    return torch.stack((lts, lte, uts, ute), dim=-1), False


def _two_slots(tensor: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Return the first two slots, `[B, Hm, Sk]` each; unused ones hold `fill`."""
    first = tensor[:, :, 0]
    second = tensor[:, :, 1] if tensor.shape[2] > 1 else torch.full_like(first, fill)
    return first, second


def _touches_ends(s1: Tensor, e1: Tensor, s2: Tensor, e2: Tensor, rows: int) -> bool:
    """Whether every interval begins with the first row or ends with the last one."""
    first = (s1 == 0) | (e1 == rows) | (s1 >= e1)
    second = (e2 == rows) | (s2 >= e2)
    return bool((first & second).all())
