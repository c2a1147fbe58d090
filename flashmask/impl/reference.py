# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The reference: attention under a column-wise mask and its gradients, as formulas in plain torch.

Runs on every device, computes in float32 (float64 for float64 inputs) and works through the query
rows in blocks, so that the scores of all rows never exist at once. It is what the other
implementations are compared with, so it is written to be read, not to be fast.

Source: "FlashMask: Efficient and Rich Mask Extension of FlashAttention", arXiv 2410.01359, for the
mask; "FlashAttention-2", arXiv 2307.08691, for the backward formulas.
"""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask.mask.dense import lowered_to_dense
from flashmask.mask.lowering import lower

_BLOCK_ELEMENTS = 2**23  # scores which exist at once; 32 MiB in float32


def _grouped(mask: Tensor, heads_q: int, heads_k: int) -> Tensor:
    """Splits the mask heads of ``[B, Hm, R, Sk]`` into key heads and query heads per key head."""
    heads = mask.shape[1]
    if heads == 1:
        return mask.unsqueeze(1)
    if heads == heads_k:
        return mask.unsqueeze(2)
    return torch.unflatten(mask, 1, (heads_k, heads_q // heads_k))


def _accumulation_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


def _by_key_head(tensor: Tensor, heads_k: int, dtype: torch.dtype) -> Tensor:
    """``[B, S, Hq, D]`` as ``[B, Hk, G, S, D]`` in the dtype of the computation."""
    return torch.unflatten(tensor.to(dtype), 2, (heads_k, tensor.shape[2] // heads_k)).permute(
        0, 2, 3, 1, 4
    )


def _row_blocks(query: Tensor, key: Tensor) -> list[tuple[int, int]]:
    """Ranges of rows whose scores have about ``_BLOCK_ELEMENTS`` elements."""
    batch, seqlen_q, heads_q, _ = query.shape
    step = max(1, _BLOCK_ELEMENTS // max(1, batch * heads_q * key.shape[1]))
    return [(start, min(start + step, seqlen_q)) for start in range(0, seqlen_q, step)]


def _scores(q: Tensor, k: Tensor, hidden: Tensor, scale: float) -> Tensor:
    """Scaled scores ``[B, Hk, G, R, Sk]`` of a block of rows, -inf where hidden."""
    # One product per key head: the query heads of a group lie below one another as rows.
    scores = torch.unflatten(q.flatten(2, 3) @ k.transpose(-1, -2), 2, q.shape[2:4]) * scale
    return scores.masked_fill(hidden, float("-inf"))


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    """Attention and the logarithm of its row sums. Arguments must be valid already.

    Args:
        query: ``[B, Sq, Hq, D]`` floating point.
        key: ``[B, Sk, Hk, D]``.
        value: ``[B, Sk, Hk, Dv]``.
        startend_row_indices: ``[B, 1|Hk|Hq, Sk, 1|2|4]`` int32 or None.
        block_mask: ``[B, 1|Hk|Hq, ceil(Sq/128), ceil(Sk/128)]`` int32 or None.
        causal: hide the bottom-right aligned upper triangle, too.
        softmax_scale: factor of the scores.

    Returns:
        ``out [B, Sq, Hq, Dv]`` in the dtype of query, exactly 0 in rows which see nothing, and
        ``lse [B, Hq, Sq]`` float32 (float64 for float64 inputs), natural logarithm, -inf in those
        rows.
    """
    batch, seqlen_q, heads_q, _ = query.shape
    seqlen_k, heads_k, head_dim_v = value.shape[1:]
    dtype = _accumulation_dtype(query)
    out = query.new_zeros((batch, seqlen_q, heads_q, head_dim_v))
    lse = query.new_full((batch, heads_q, seqlen_q), float("-inf"), dtype=dtype)
    if out.numel() == 0 or seqlen_k == 0:
        return out, lse

    q, k, v = (_by_key_head(t, heads_k, dtype) for t in (query, key, value))
    k, v = k.squeeze(2), v.squeeze(2)  # [B, Hk, Sk, D]
    lowered = lower(startend_row_indices, causal, seqlen_q, seqlen_k, device=query.device)
    for start, stop in _row_blocks(query, key):
        rows = (start, stop)
        visible = lowered_to_dense(lowered, seqlen_q, block_mask, rows=rows, max_elements=None)
        hidden = ~_grouped(visible, heads_q, heads_k)
        scores = _scores(q[:, :, :, start:stop], k, hidden, softmax_scale)
        largest = scores.amax(-1, keepdim=True)
        # In a row which sees nothing, -inf - -inf would be NaN; 0 gives exp(-inf) = 0 instead.
        largest = largest.masked_fill(largest == float("-inf"), 0.0)
        weights = (scores - largest).exp()
        total = weights.sum(
            -1, keepdim=True
        )  # 0 in a row which sees nothing, NaN where NaN is visible
        block = torch.unflatten(weights.flatten(2, 3) @ v, 2, weights.shape[2:4])
        block = block / total.masked_fill(total == 0, 1.0)
        out[:, start:stop] = block.permute(0, 3, 1, 2, 4).flatten(2, 3)
        lse[:, :, start:stop] = (largest + total.log()).squeeze(-1).flatten(1, 2)
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    startend_row_indices: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value by their formulas. Arguments must be valid already.

    With the weights ``P = exp(scores - lse)`` and ``delta = rowsum(grad_out * out) - grad_lse``::

        grad_value = P^T grad_out
        grad_scores = P * (grad_out value^T - delta)
        grad_query = scale * grad_scores key
        grad_key = scale * grad_scores^T query

    Args:
        grad_out: ``[B, Sq, Hq, Dv]``.
        grad_lse: ``[B, Hq, Sq]`` or None for zeros.
        out: ``[B, Sq, Hq, Dv]`` as forward returned it.
        lse: ``[B, Hq, Sq]`` as forward returned it.

    The others are those of :func:`forward`.

    Returns:
        Contiguous gradients in the shapes and dtypes of query, key and value. Rows which see
        nothing get and give exactly nothing, whatever their ``grad_out`` holds.
    """
    seqlen_q, heads_q = query.shape[1:3]
    seqlen_k, heads_k = key.shape[1:3]
    dtype = _accumulation_dtype(query)
    grad_query = query.new_zeros(query.shape, dtype=dtype)
    grad_key = key.new_zeros((key.shape[0], heads_k, seqlen_k, key.shape[3]), dtype=dtype)
    grad_value = value.new_zeros((value.shape[0], heads_k, seqlen_k, value.shape[3]), dtype=dtype)
    if out.numel() != 0 and seqlen_k != 0:
        # Rows without any visible column drop out of everything here.
        groups = (heads_k, heads_q // heads_k)
        row_lse = torch.unflatten(lse.to(dtype), 1, groups).unsqueeze(-1)
        blind = row_lse == float("-inf")
        row_lse = row_lse.masked_fill(blind, 0.0)
        q, k, v = (_by_key_head(t, heads_k, dtype) for t in (query, key, value))
        k, v = k.squeeze(2), v.squeeze(2)
        go, o = (_by_key_head(t, heads_k, dtype) for t in (grad_out, out))
        go = go.masked_fill(blind, 0.0)
        delta = (go * o).sum(-1, keepdim=True)
        if grad_lse is not None:
            delta = delta - torch.unflatten(grad_lse.to(dtype), 1, groups).unsqueeze(-1)
        delta = delta.masked_fill(blind, 0.0)
        lowered = lower(startend_row_indices, causal, seqlen_q, seqlen_k, device=query.device)
        for start, stop in _row_blocks(query, key):
            rows = slice(start, stop)
            visible = lowered_to_dense(
                lowered, seqlen_q, block_mask, rows=(start, stop), max_elements=None
            )
            hidden = ~_grouped(visible, heads_q, heads_k)
            q_rows, go_rows = q[:, :, :, rows].flatten(2, 3), go[:, :, :, rows].flatten(2, 3)
            scores = _scores(q[:, :, :, rows], k, hidden, softmax_scale)
            weights = (scores - row_lse[:, :, :, rows]).exp().masked_fill(hidden, 0.0)
            grad_weights = torch.unflatten(go_rows @ v.transpose(-1, -2), 2, weights.shape[2:4])
            grad_scores = (weights * (grad_weights - delta[:, :, :, rows])).masked_fill(hidden, 0.0)
            weights, grad_scores = weights.flatten(2, 3), grad_scores.flatten(2, 3) * softmax_scale
            grad_value += weights.transpose(-1, -2) @ go_rows
            grad_key += grad_scores.transpose(-1, -2) @ q_rows
            block = torch.unflatten(grad_scores @ k, 2, (groups[1], stop - start))
            grad_query[:, rows] = block.permute(0, 3, 1, 2, 4).flatten(2, 3)
    return (
        grad_query.to(query.dtype),
        grad_key.transpose(1, 2).to(key.dtype).contiguous(),
        grad_value.transpose(1, 2).to(value.dtype).contiguous(),
    )
