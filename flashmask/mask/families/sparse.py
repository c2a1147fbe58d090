# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Sparse attention: spans, hash buckets, keys evicted from a cache."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask.mask.checks import check_count
from flashmask.mask.families.columns import Device, as_batch, stack_columns
from flashmask.mask.flash_mask import FlashMask

Spans = Sequence[tuple[int, int]] | Sequence[Sequence[tuple[int, int]]]


def qk_sparse(seqlen: int, spans: Spans, *, device: Device = None) -> FlashMask:
    """Causal, except that tokens of one span do not see one another, nor themselves.

    Args:
        seqlen: number of tokens.
        spans: `(start, stop)` of every span, half-open, not overlapping; one list of spans, or one
            per batch entry.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, seqlen, 2]`.

    Raises:
        ValueError: a span that is reversed, outside of the sequence, or overlaps another.
    """
    check_count("seqlen", seqlen)
    batch = as_batch("spans", spans, 2)
    bounds = torch.full((len(batch), seqlen, 2), seqlen, dtype=torch.int32)
    for entry, columns in zip(batch, bounds, strict=True):
        covered = 0
        for start, stop in sorted(tuple(span) for span in entry):
            if not covered <= start <= stop <= seqlen:
                raise ValueError(
                    f"spans must be (start, stop) within seqlen={seqlen} and must not overlap, "
                    f"but ({start}, {stop}) is or does"
                )
            columns[start:stop, 0] = torch.arange(start, stop, dtype=torch.int32)
            columns[start:stop, 1] = stop
            covered = stop
    return stack_columns(*bounds.to(device).unbind(-1), causal=True, seqlen_q=seqlen)


def hash_order(buckets: Tensor) -> Tensor:
    """Return the order in which `hash_sparse` expects tokens: by bucket, then by position.

    Args:
        buckets: integer `[..., S]`, the bucket of every token.

    Returns:
        int64 `[..., S]`: original position of every sorted token. Sort queries and keys with
        `gather` along it, and put outputs back with its `argsort`.
    """
    return torch.argsort(buckets, dim=-1, stable=True)


def hash_sparse(query_buckets: Tensor, key_buckets: Tensor) -> FlashMask:
    """A row sees the keys of its own bucket that do not come after it (Reformer).

    Rows and columns of the mask are the *sorted* tokens: queries in the order of
    `hash_order(query_buckets)`, keys in that of `hash_order(key_buckets)`.

    Args:
        query_buckets: integer `[Sq]`, `[B, Sq]` or `[B, Hm, Sq]`, in the original order.
        key_buckets: integer, the same with Sk; the last query has the position of the last key.

    Returns:
        A mask with bounds `[B, Hm, Sk, 2]`.

    Raises:
        ValueError: the two tensors differ in more than their last dimension.
    """
    if query_buckets.shape[:-1] != key_buckets.shape[:-1]:
        raise ValueError(
            f"query_buckets and key_buckets must agree in all but the last dimension, but their "
            f"shapes are {tuple(query_buckets.shape)} and {tuple(key_buckets.shape)}"
        )
    seqlen_q, seqlen_k = query_buckets.shape[-1], key_buckets.shape[-1]
    query_order, key_order = hash_order(query_buckets), hash_order(key_buckets)
    # Ranks in place of the numbers, which may be hashes of any size.
    everything = torch.cat([query_buckets, key_buckets], -1).long()
    ranks = torch.unique(everything, return_inverse=True)[1]
    query_rank, key_rank = ranks.split([seqlen_q, seqlen_k], -1)
    query_bucket = query_rank.gather(-1, query_order)
    key_bucket = key_rank.gather(-1, key_order)
    # First row of the bucket that does not come before the key: search (bucket, position) pairs,
    # made into one ascending number each.
    positions = max(seqlen_q, seqlen_k) + 1
    key_row = (key_order - (seqlen_k - seqlen_q)).clamp(0, seqlen_q)
    ute = torch.searchsorted(
        query_bucket * positions + query_order, key_bucket * positions + key_row
    )
    lts = torch.searchsorted(query_bucket, key_bucket, right=True)
    return stack_columns(lts, ute, causal=False, seqlen_q=seqlen_q)


def eviction(evicted_at: Tensor) -> FlashMask:
    """Causal, and a key is hidden from the row at which it leaves the cache, and from all later.

    Args:
        evicted_at: integer `[S]`, `[B, S]` or `[B, Hm, S]`: the row at which every key is evicted,
            S (or more) for never.

    Returns:
        A mask with bounds `[B, Hm, S, 1]`.
    """
    seqlen = evicted_at.shape[-1]
    return stack_columns(evicted_at.clamp(0, seqlen), causal=True, seqlen_q=seqlen)


def random_eviction(
    seqlen: int,
    *,
    first_row: int,
    heads: int = 1,
    batch: int = 1,
    seed: int = 0,
    device: Device = None,
) -> FlashMask:
    """A cache of `first_row` keys: from that row on, every row evicts one random earlier key.

    Args:
        seqlen: number of tokens.
        first_row: first row that evicts.
        heads: number of mask heads, each with its own choice.
        batch: number of batch entries, each with its own choice.
        seed: seed of the choice.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[batch, heads, seqlen, 1]`.
    """
    for name, value in (("seqlen", seqlen), ("first_row", first_row)):
        check_count(name, value)
    check_count("heads", heads, 1)
    check_count("batch", batch)
    generator = torch.Generator().manual_seed(seed)
    rows = [
        evict_in_order(torch.randperm(seqlen, generator=generator).tolist(), first_row)
        for _ in range(batch * heads)
    ]
    evicted_at = torch.tensor(rows, dtype=torch.int32, device=device)
    return eviction(evicted_at.reshape(batch, heads, seqlen))


def evict_in_order(order: Sequence[int], first_row: int) -> list[int]:
    """Return the row at which every key is evicted.

    Every row from `first_row` on evicts, of the keys before it that are still there, the one that
    comes first in `order`. O(S log S).
    """
    seqlen = len(order)
    rank = [0] * seqlen
    for place, key in enumerate(order):
        rank[key] = place
    evicted_at = [seqlen] * seqlen
    cached = rank[:first_row]
    heapq.heapify(cached)
    for row in range(first_row, seqlen):
        if cached:
            evicted_at[order[heapq.heappop(cached)]] = row
        heapq.heappush(cached, rank[row])
    return evicted_at
