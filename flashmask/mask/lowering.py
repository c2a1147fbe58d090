# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From the bounds a user writes to the one form every kernel reads.

That form is two hidden row intervals per key column. This file is the readable specification; the
compiled kernels do the same in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lower(
    bounds: Tensor | None,
    causal: bool,
    seqlen_q: int,
    seqlen_k: int,
    *,
    canonical: bool = True,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the hidden row intervals `[LTS, LTE)` and `[UTS, UTE)` of every key column.

    The four accepted forms, with r a query row and j a key column:

    ======  ==  ======================  ==========================================
    causal  C   stored as               hidden rows of a column
    ======  ==  ======================  ==========================================
    True    1   LTS                     r >= LTS, and the causal triangle
    True    2   LTS, LTE                LTS <= r < LTE, and the causal triangle
    False   2   LTS, UTE                r >= LTS, or r < UTE
    False   4   LTS, LTE, UTS, UTE      LTS <= r < LTE, or UTS <= r < UTE
    ======  ==  ======================  ==========================================

    The causal triangle is aligned to the bottom right: column j is hidden from rows r < j - (Sk -
    Sq). It needs the upper interval only, so every accepted form fits in two intervals and the
    result needs no causal flag.

    Values outside [0, Sq] behave as if clamped. An interval with start >= end is empty and comes
    out in its canonical form, LTS = LTE = Sq or UTS = UTE = 0: any other empty interval would pull
    down the minimum of its tile, and the tile could then no longer be skipped.

    Args:
        bounds: int32 `[B, Hm, Sk, C]`, or None for plain full or causal attention.
        causal: whether the causal triangle is hidden as well.
        seqlen_q: Sq, number of query rows.
        seqlen_k: Sk, number of key columns.
        canonical: False leaves empty intervals where they are. The mask is the same, but more tiles
            look partial; useful only to reproduce tile counts made that way.
        device: where to put the result if `bounds` is None; ignored otherwise.

    Returns:
        int32 `[B, Hm, 4, Sk]` (`[1, 1, 4, Sk]` without bounds), in the order LTS, LTE, UTS,
        UTE.

    Raises:
        ValueError: if `causal` and the last dimension of `bounds` do not name one of the four
            forms.
    """
    if bounds is None:
        stored: tuple[Tensor, ...] = ()
        first_row = torch.zeros((1, 1, seqlen_k), dtype=torch.int32, device=device)
    else:
        stored = bounds.unbind(-1)
        first_row = torch.zeros(bounds.shape[:-1], dtype=torch.int32, device=bounds.device)
    past_last_row = first_row + seqlen_q

    lts, lte, uts, ute = past_last_row, past_last_row, first_row, first_row
    if causal and len(stored) <= 2:
        diagonal = torch.arange(seqlen_k, dtype=torch.int32, device=first_row.device)
        ute = (diagonal - (seqlen_k - seqlen_q)).expand_as(first_row)
        if len(stored) == 1:
            (lts,) = stored
        elif len(stored) == 2:
            lts, lte = stored
    elif not causal and len(stored) == 2:
        lts, ute = stored
    elif not causal and len(stored) == 4:
        lts, lte, uts, ute = stored
    elif stored or causal:
        raise ValueError(
            f"startend_row_indices must have 1 or 2 bounds per column with causal=True and 2 or 4 "
            f"with causal=False, but has {len(stored)} with causal={causal}"
        )

    lts, lte, uts, ute = (bound.clamp(0, seqlen_q) for bound in (lts, lte, uts, ute))
    if not canonical:
        return torch.stack((lts, lte, uts, ute), dim=2).to(torch.int32)
    lower_empty, upper_empty = lts >= lte, uts >= ute
    lts = torch.where(lower_empty, past_last_row, lts)
    lte = torch.where(lower_empty, past_last_row, lte)
    uts = torch.where(upper_empty, first_row, uts)
    ute = torch.where(upper_empty, first_row, ute)
    return torch.stack((lts, lte, uts, ute), dim=2).to(torch.int32)
