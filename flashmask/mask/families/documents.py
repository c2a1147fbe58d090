# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks over several documents packed into one sequence.

Lengths come as one list for one sequence, or as a list of lists for a batch. All sequences of a
batch must be equally long, unless `seqlen` says how long to pad them: padding sees nothing and is
seen by nobody. Rows and keys are the same tokens; take `mask.last_rows(n)` for fewer rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from flashmask.mask.checks import check_count
from flashmask.mask.families.columns import (
    Device,
    as_batch,
    limited,
    positions,
    stack_columns,
)
from flashmask.mask.flash_mask import FlashMask

DocumentLengths = Sequence[int] | Sequence[Sequence[int]] | Tensor
DocumentParts = Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]] | Tensor


def causal_document(
    lengths: DocumentLengths, *, seqlen: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees its own position and those before it in the same document (packed pretraining).

    Args:
        lengths: document lengths, `[n]` or one list per batch entry.
        seqlen: pad every sequence to this many tokens.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 1]`.

    Raises:
        ValueError: a negative length, or sequences of unequal lengths without `seqlen`.
    """
    _, end = _document_of_tokens("lengths", as_batch("lengths", lengths, 1), seqlen, device)
    return stack_columns(end, causal=True, seqlen_q=end.shape[-1])


def document(
    lengths: DocumentLengths, *, seqlen: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the whole document it belongs to (packed encoders, images in NaViT).

    Args:
        lengths: document lengths, `[n]` or one list per batch entry.
        seqlen: pad every sequence to this many tokens.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 2]`.

    Raises:
        ValueError: a negative length, or sequences of unequal lengths without `seqlen`.
    """
    start, end = _document_of_tokens("lengths", as_batch("lengths", lengths, 1), seqlen, device)
    return stack_columns(end, start, causal=False, seqlen_q=end.shape[-1])


def document_window(
    lengths: DocumentLengths, *, window: int, seqlen: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the last `window` keys up to its own, as far as they are in its document.

    Args:
        lengths: document lengths, `[n]` or one list per batch entry.
        window: how many keys a row sees at most, its own included.
        seqlen: pad every sequence to this many tokens.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 1]`.

    Raises:
        ValueError: a negative number, or sequences of unequal lengths without `seqlen`.
    """
    _, end = _document_of_tokens("lengths", as_batch("lengths", lengths, 1), seqlen, device)
    window = limited("window", window, end.shape[-1])
    lts = torch.minimum(end, positions(end.shape[-1], end.device) + window)
    return stack_columns(lts, causal=True, seqlen_q=end.shape[-1])


def chunked_local(seqlen: int, *, chunk: int, device: Device = None) -> FlashMask:
    """A row sees its own position and those before it in the same chunk (Llama 4).

    Args:
        seqlen: number of tokens.
        chunk: tokens per chunk; the last chunk may be shorter.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[1, 1, seqlen, 1]`.
    """
    check_count("seqlen", seqlen)
    chunk = limited("chunk", chunk, seqlen, minimum=1)
    lts = ((positions(seqlen, device) // chunk + 1) * chunk).clamp(max=seqlen)
    return stack_columns(lts, causal=True, seqlen_q=seqlen)


def shared_question(
    documents: DocumentParts, *, seqlen: int | None = None, device: Device = None
) -> FlashMask:
    """Several answers share one question and do not see one another (DPO, RM, GRPO).

    A row sees, up to its own position, the question of its document and its own answer.

    Args:
        documents: `[question, answer, answer, ...]` lengths of every document; one such list of
            documents, or one per batch entry.
        seqlen: pad every sequence to this many tokens.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 1]`.

    Raises:
        ValueError: a negative length, or sequences of unequal lengths without `seqlen`.
    """
    batch = as_batch("documents", documents, 2)
    parts = [[length for parts in entry for length in parts] for entry in batch]
    totals = [[sum(parts) for parts in entry] for entry in batch]
    _, part_end = _document_of_tokens("documents", parts, seqlen, device)
    start, end = _document_of_tokens("documents", totals, seqlen, device)
    question = [[parts[0] if parts else 0 for parts in entry] for entry in batch]
    question_length = _spread(question, totals, end.shape[-1], device)
    in_question = positions(end.shape[-1], device) - start < question_length
    return stack_columns(
        torch.where(in_question, end, part_end), causal=True, seqlen_q=end.shape[-1]
    )


def causal_blockwise(lengths: DocumentLengths, *, device: Device = None) -> FlashMask:
    """Examples see only themselves, the last block sees them all (in-context learning).

    A row sees, up to its own position, its own block; a row of the last block sees every key up to
    its own position.

    Args:
        lengths: block lengths, `[n]` or one list per batch entry; the last one is the query block.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 2]`.

    Raises:
        ValueError: a negative length, or sequences of unequal lengths.
    """
    batch = as_batch("lengths", lengths, 1)
    _, lts = _document_of_tokens("lengths", batch, None, device)
    seqlen = lts.shape[-1]
    last_block = [[sum(entry[:-1])] for entry in batch]
    start_of_last = torch.tensor(last_block, dtype=torch.int32, device=device).reshape(-1, 1)
    in_last = positions(seqlen, device) >= start_of_last
    lts = lts.masked_fill(in_last, seqlen)
    lte = torch.where(in_last, seqlen, start_of_last)
    return stack_columns(lts, lte, causal=True, seqlen_q=seqlen)


def prefix_lm_document(
    documents: DocumentParts, *, seqlen: int | None = None, device: Device = None
) -> FlashMask:
    """A row sees the prefix of its document and, besides, the keys up to its own (packed T5).

    Args:
        documents: `(prefix length, document length)` of every document, the prefix being part of
            the document; one such list, or one per batch entry.
        seqlen: pad every sequence to this many tokens.
        device: where to put the bounds.

    Returns:
        A mask with bounds `[B, 1, S, 2]`.

    Raises:
        ValueError: a prefix longer than its document, a negative length, or sequences of unequal
            lengths without `seqlen`.
    """
    batch = as_batch("documents", documents, 2)
    for entry in batch:
        for pair in entry:
            if len(pair) != 2 or pair[0] > pair[1] or pair[0] < 0:
                raise ValueError(
                    f"documents must hold (prefix length, document length) with "
                    f"0 <= prefix <= document, but holds {tuple(pair)}"
                )
    lengths = [[pair[1] for pair in entry] for entry in batch]
    start, end = _document_of_tokens("documents", lengths, seqlen, device)
    prefix = _spread([[p[0] for p in entry] for entry in batch], lengths, end.shape[-1], device)
    position = positions(end.shape[-1], device)
    ute = torch.where(position - start < prefix, start, position)
    return stack_columns(end, ute, causal=False, seqlen_q=end.shape[-1])


def _document_of_tokens(
    name: str, batch: Sequence[Sequence[int]], seqlen: int | None, device: Device
) -> tuple[Tensor, Tensor]:
    """Return first token and one past the last token of every token's document, int32 `[B, S]`.

    Padding tokens get 0 and 0. As `LTS = end` in every family here, that hides them from all rows.
    """
    for entry in batch:
        for length in entry:
            check_count(f"a length in {name}", length)
    totals = [sum(entry) for entry in batch]
    if seqlen is None:
        if len(set(totals)) > 1:
            raise ValueError(
                f"the lengths in {name} must add up to the same number of tokens in every batch "
                f"entry, but add up to {totals}; give seqlen to pad them"
            )
        seqlen = totals[0] if totals else 0
    check_count("seqlen", seqlen)
    if max(totals, default=0) > seqlen:
        raise ValueError(
            f"the lengths in {name} must add up to at most seqlen={seqlen}, "
            f"but add up to {max(totals)}"
        )
    ends = [_running_sum(entry) for entry in batch]
    starts = [[0, *entry[:-1]] if entry else [] for entry in ends]
    return _spread(starts, batch, seqlen, device), _spread(ends, batch, seqlen, device)


def _running_sum(lengths: Sequence[int]) -> list[int]:
    total, sums = 0, []
    for length in lengths:
        total += length
        sums.append(total)
    return sums


def _spread(
    values: Sequence[Sequence[int]], lengths: Sequence[Sequence[int]], seqlen: int, device: Device
) -> Tensor:
    """Return the value of every token's document, 0 for padding, int32 `[B, seqlen]`."""
    result = torch.zeros((len(lengths), seqlen), dtype=torch.int32)
    for row, value, length in zip(result, values, lengths, strict=True):
        counts = torch.tensor(length, dtype=torch.int64)
        tokens = torch.tensor(value, dtype=torch.int32).repeat_interleave(counts)
        row[: tokens.numel()] = tokens
    return result.to(device) if device is not None else result
