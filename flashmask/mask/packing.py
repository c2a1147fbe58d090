# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks from what data loaders produce: cumulative lengths, document and position ids, padding.

All work is vectorized. Values are checked in eager code, which waits for the device once; under
`torch.compile` they are not checked.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from flashmask.mask.families.columns import stack_columns
from flashmask.mask.families.padding import hide_columns
from flashmask.mask.flash_mask import FlashMask


def from_cu_seqlens(
    cu_seqlens: Tensor,
    cu_seqlens_k: Tensor | None = None,
    *,
    causal: bool = True,
    seqlen: int | None = None,
    seqlen_k: int | None = None,
) -> FlashMask:
    """Return the document mask of cumulative lengths, as FlashAttention's varlen functions take.

    Args:
        cu_seqlens: integer `[n + 1]`: 0, and one past the last token of each of n documents. Of the
            queries, if `cu_seqlens_k` is given.
        cu_seqlens_k: the same for keys, if queries and keys have different lengths. A causal mask
            is then aligned to the bottom right of each document.
        causal: whether rows see only keys up to their own position.
        seqlen: number of tokens with padding at the end, which sees nothing and is seen by nobody;
            by default the last entry of `cu_seqlens`.
        seqlen_k: the same for keys, if `cu_seqlens_k` is given.

    Returns:
        A mask with bounds `[1, 1, Sk, 1]` (causal, without `cu_seqlens_k`) or `[1, 1, Sk, 2]`.

    Raises:
        ValueError: not ascending from 0, more than `seqlen` tokens, or a different number of
            documents for queries and keys.
    """
    rows = _check_cumulative("cu_seqlens", cu_seqlens, seqlen)
    if cu_seqlens_k is None:
        start, end, _ = _documents_of(cu_seqlens, rows)
        return _document_mask(start, end, causal)
    columns = _check_cumulative("cu_seqlens_k", cu_seqlens_k, seqlen_k)
    if cu_seqlens_k.shape != cu_seqlens.shape:
        raise ValueError(
            f"cu_seqlens and cu_seqlens_k must have the same number of documents, "
            f"but have {len(cu_seqlens) - 1} and {len(cu_seqlens_k) - 1}"
        )
    _, key_end, index = _documents_of(cu_seqlens_k, columns)
    start, end = _span_of(cu_seqlens, index)
    ute = start
    if causal:
        column = torch.arange(columns, device=start.device)
        ute = torch.maximum(start, end - (key_end - column))
    return stack_columns(end, ute, causal=False, seqlen_q=rows)


def _two_dimensional(name: str, ids: Tensor) -> Tensor:
    if ids.dim() not in (1, 2):
        raise ValueError(
            f"{name} must be [S] or [B, S], but its shape is {tuple(ids.shape)}; "
            f"pass one number per token"
        )
    return ids[None] if ids.dim() == 1 else ids


def from_document_ids(
    document_ids: Tensor, *, causal: bool = True, padding_id: int | None = None
) -> FlashMask:
    """Return the mask of tokens that know their document.

    Args:
        document_ids: integer `[S]` or `[B, S]`; the tokens of a document are contiguous.
        causal: whether rows see only keys up to their own position.
        padding_id: the id of padding, which sees nothing and is seen by nobody.

    Returns:
        A mask with bounds `[B, 1, S, 1]` (causal) or `[B, 1, S, 2]`.

    Raises:
        ValueError: a document in several pieces, or another number of dimensions.
    """
    ids = _two_dimensional("document_ids", document_ids)
    begins = torch.ones_like(ids, dtype=torch.bool)
    begins[:, 1:] = ids[:, 1:] != ids[:, :-1]
    padding = torch.zeros_like(begins) if padding_id is None else ids == padding_id
    if not torch.compiler.is_compiling():
        _check_contiguous(ids, begins & ~padding)
    start, end = _runs(begins)
    return _document_mask(start.masked_fill(padding, 0), end.masked_fill(padding, 0), causal)


def from_position_ids(position_ids: Tensor, *, causal: bool = True) -> FlashMask:
    """Return the document mask of packed sequences whose positions start again with 0.

    Args:
        position_ids: integer `[S]` or `[B, S]`; every 0 starts a document.
        causal: whether rows see only keys up to their own position.

    Returns:
        A mask with bounds `[B, 1, S, 1]` (causal) or `[B, 1, S, 2]`.

    Raises:
        ValueError: another number of dimensions.
    """
    ids = _two_dimensional("position_ids", position_ids)
    begins = ids == 0
    begins[:, :1] = True
    return _document_mask(*_runs(begins), causal)


def from_padding_mask(
    attention_mask: Tensor,
    *,
    causal: bool = True,
    seqlen_q: int | None = None,
    packed: bool = False,
) -> FlashMask:
    """Return the mask of a two-dimensional `attention_mask`, as transformers makes it.

    Args:
        attention_mask: integer or bool `[B, Sk]`, 1 keeps a key and 0 hides it from every row;
            padding may be on the left, on the right, or anywhere.
        causal: whether rows see only keys up to their own position.
        seqlen_q: number of rows, Sk by default; they have the last positions.
        packed: the numbers are document ids instead, such as 1 1 2 2 2 0, and 0 is padding.

    Returns:
        A mask with bounds `[B, 1, Sk, 1]` (causal) or `[B, 1, Sk, 2]`.

    Raises:
        ValueError: not two-dimensional, or numbers other than 0 and 1 without `packed`.
    """
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask must have 2 dimensions [B, Sk], "
            f"but its shape is {tuple(attention_mask.shape)}"
        )
    rows = attention_mask.shape[1] if seqlen_q is None else seqlen_q
    if packed:
        mask = from_document_ids(attention_mask, causal=causal, padding_id=0)
        return mask if seqlen_q is None else mask.last_rows(seqlen_q)
    keep = attention_mask != 0
    if (
        attention_mask.dtype != torch.bool
        and not torch.compiler.is_compiling()
        and not torch.equal(attention_mask, keep.to(attention_mask.dtype))
    ):
        raise ValueError(
            "attention_mask must hold 0 and 1 only; if it holds document ids, say packed=True"
        )
    return hide_columns(keep, causal=causal, seqlen_q=rows)


def _document_mask(start: Tensor, end: Tensor, causal: bool) -> FlashMask:
    """Return the mask of tokens whose document has rows `[start, end)`."""
    if causal:
        return stack_columns(end, causal=True, seqlen_q=end.shape[-1])
    return stack_columns(end, start, causal=False, seqlen_q=end.shape[-1])


def _runs(begins: Tensor) -> tuple[Tensor, Tensor]:
    """Return first token and one past the last token of every token's run, `[B, S]`.

    Args:
        begins: bool `[B, S]`, True where a run begins, which the first token must.
    """
    seqlen = begins.shape[-1]
    index = torch.arange(seqlen, device=begins.device)
    if seqlen == 0:
        return index.expand_as(begins), index.expand_as(begins)
    start = index.where(begins, 0).cummax(dim=-1).values
    following = torch.nn.functional.pad(index.where(begins, seqlen)[:, 1:], (0, 1), value=seqlen)
    end = following.flip(-1).cummin(dim=-1).values.flip(-1)
    return start, end


def _documents_of(cu_seqlens: Tensor, seqlen: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return start, end and number of every token's document, `[seqlen]`.

    Tokens after the last of n documents are padding: they get 0, 0 and n.
    """
    token = torch.arange(seqlen, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    index = torch.searchsorted(cu_seqlens, token, right=True) - 1
    start, end = _span_of(cu_seqlens, index)
    return start, end, index


def _span_of(cu_seqlens: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return start and end of documents by their number; 0 and 0 for the number past the last."""
    padding = index == len(cu_seqlens) - 1
    ends = torch.nn.functional.pad(cu_seqlens[1:], (0, 1))
    return cu_seqlens[index].masked_fill(padding, 0), ends[index]


def _check_cumulative(name: str, cu_seqlens: Tensor, seqlen: int | None) -> int:
    """Check cumulative lengths and return the number of tokens."""
    if cu_seqlens.dim() != 1 or len(cu_seqlens) == 0:
        raise ValueError(
            f"{name} must have one dimension and start with 0, "
            f"but its shape is {tuple(cu_seqlens.shape)}"
        )
    if torch.compiler.is_compiling() and seqlen is not None:
        return seqlen
    values = cu_seqlens.tolist()
    if values[0] != 0 or any(a > b for a, b in itertools.pairwise(values)):
        raise ValueError(f"{name} must ascend from 0, but is {values[:16]}")
    if seqlen is not None and values[-1] > seqlen:
        raise ValueError(
            f"{name} must end with at most {seqlen} tokens, but ends with {values[-1]}"
        )
    return values[-1] if seqlen is None else seqlen


def _check_contiguous(ids: Tensor, begins: Tensor) -> None:
    """Check that no document begins twice."""
    entry, token = begins.nonzero().unbind(-1)
    starts = torch.stack((entry, ids[entry, token].long()), dim=-1)
    documents, pieces = torch.unique(starts, dim=0, return_counts=True)
    if len(documents) == len(starts):
        return
    batch, document = documents[pieces > 1][0].tolist()
    raise ValueError(
        f"the tokens of a document must be contiguous, but document {document} of batch entry "
        f"{batch} is in {int(pieces[pieces > 1][0])} pieces; number the pieces apart if they need "
        f"not see one another, otherwise use masks.from_mask_mod"
    )
