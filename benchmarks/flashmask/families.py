# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The masks that are timed: our builder beside the `mask_mod` of a FlexAttention user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from flashmask import FlashMask, masks

MaskMod = Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class Family:
    """A row of the table: both functions take the sequence length."""

    name: str
    build: Callable[[int], FlashMask]
    mask_mod: Callable[[int], MaskMod]


def lengths(seqlen: int) -> list[int]:
    """Three documents in the ratio of the 8K example of the FlashMask paper: 2538, 1742, 3912."""
    first, second = seqlen * 2538 // 8192, seqlen * 1742 // 8192
    return [first, second, seqlen - first - second]


def _starts(parts: list[int]) -> list[int]:
    return [0, *accumulate(parts)][:-1]


def _document_of(seqlen: int) -> Tensor:
    return torch.repeat_interleave(torch.tensor(lengths(seqlen)))


def _full(seqlen: int) -> MaskMod:
    return lambda b, h, i, j: i >= 0


def _causal(seqlen: int) -> MaskMod:
    return lambda b, h, i, j: i >= j


def _window(seqlen: int) -> MaskMod:
    width = seqlen // 8
    return lambda b, h, i, j: (i >= j) & (i - j < width)


def _causal_document(seqlen: int) -> MaskMod:
    doc = _document_of(seqlen)
    return lambda b, h, i, j: (i >= j) & (doc[i] == doc[j])


def _document(seqlen: int) -> MaskMod:
    doc = _document_of(seqlen)
    return lambda b, h, i, j: doc[i] == doc[j]


def _questions(seqlen: int) -> list[list[int]]:
    """Per document: a question of half its length and three answers."""
    return [[n - 3 * (n // 6), n // 6, n // 6, n // 6] for n in lengths(seqlen)]


def _shared_question(seqlen: int) -> MaskMod:
    doc = _document_of(seqlen)
    parts = [n for one in _questions(seqlen) for n in one]
    part = torch.repeat_interleave(torch.tensor(parts))
    question = part % 4 == 0
    return lambda b, h, i, j: (i >= j) & (doc[i] == doc[j]) & (question[j] | (part[i] == part[j]))


def _global_window(seqlen: int) -> MaskMod:
    side = seqlen // 16
    return lambda b, h, i, j: (i < 16) | (j < 16) | ((i - j <= side) & (j - i <= side))


def _blockwise(seqlen: int) -> MaskMod:
    doc = _document_of(seqlen)
    return lambda b, h, i, j: (i >= j) & ((doc[i] == doc[j]) | (doc[i] == 2))


def _prefix_document(seqlen: int) -> MaskMod:
    doc = _document_of(seqlen)
    prefix = torch.cat([torch.arange(n) < n // 4 for n in lengths(seqlen)])
    return lambda b, h, i, j: (doc[i] == doc[j]) & ((i >= j) | prefix[j])


def _spans(seqlen: int) -> list[tuple[int, int]]:
    return [(seqlen // 8, seqlen // 4), (seqlen // 2, seqlen * 5 // 8)]


def _qk_sparse(seqlen: int) -> MaskMod:
    span = torch.zeros(seqlen, dtype=torch.int64)
    for number, (start, stop) in enumerate(_spans(seqlen), 1):
        span[start:stop] = number
    return lambda b, h, i, j: (i >= j) & ((span[i] == 0) | (span[i] != span[j]))


def _eviction(seqlen: int) -> Tensor:
    """Row at which each key leaves the cache, drawn from the later half of the rows."""
    generator = torch.Generator().manual_seed(0)
    at = seqlen // 2 + torch.randint(0, seqlen, (seqlen,), generator=generator)
    return torch.maximum(at, torch.arange(seqlen) + 1).clamp(max=seqlen).to(torch.int32)


def _random_eviction(seqlen: int) -> MaskMod:
    at = _eviction(seqlen)
    return lambda b, h, i, j: (i >= j) & (i < at[j])


FAMILIES = (
    Family("full", lambda s: masks.full(s), _full),
    Family("causal", lambda s: masks.causal(s), _causal),
    Family("sliding_window", lambda s: masks.sliding_window(s, window=s // 8), _window),
    Family("causal_document", lambda s: masks.causal_document(lengths(s)), _causal_document),
    Family("document", lambda s: masks.document(lengths(s)), _document),
    Family("shared_question", lambda s: masks.shared_question(_questions(s)), _shared_question),
    Family(
        "global_sliding_window",
        lambda s: masks.global_sliding_window(s, num_global=16, left=s // 16, right=s // 16),
        _global_window,
    ),
    Family("causal_blockwise", lambda s: masks.causal_blockwise(lengths(s)), _blockwise),
    Family(
        "prefix_lm_document",
        lambda s: masks.prefix_lm_document([(n // 4, n) for n in lengths(s)]),
        _prefix_document,
    ),
    Family("qk_sparse", lambda s: masks.qk_sparse(s, _spans(s)), _qk_sparse),
    Family(
        "random_eviction", lambda s: masks.eviction(_eviction(s).view(1, 1, -1)), _random_eviction
    ),
)
QUICK = ("full", "causal", "causal_document")
