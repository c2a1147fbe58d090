# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reads the mask functions of transformers: which rows see a key, without a matrix.

transformers describes a mask as a function ``(batch, head, q, kv) -> bool`` that it composes from a
few factories: causal, sliding window, chunks, packed sequences, blocks. In all of them the rows
that see one key are an interval, so a function composed of them is read part by part into two
numbers per key. A function with an unknown part is evaluated instead, in blocks of columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from flashmask.interop.mask_parts import parts_of
from flashmask.mask.convert import from_mask_mod
from flashmask.mask.packing import from_document_ids

MaskFunction = Callable[..., Any]

_FAR = 2**40  # more than any position, and far from overflowing when offsets are added


class Rows(NamedTuple):
    """The rows ``[first, end)`` that see each key, int64 ``[1 or B, Sk]``; may be empty."""

    first: Tensor
    end: Tensor

    def __and__(self, other: Rows) -> Rows:
        return Rows(torch.maximum(self.first, other.first), torch.minimum(self.end, other.end))


def visible_rows(function: MaskFunction, index: Tensor) -> Rows | None:
    """Returns the rows that see each key, or None if a part of the function is not known.

    Args:
        function: a mask function of transformers.
        index: the position of each key, int64 ``[1, Sk]``.
    """
    return _visible(function, _Keys(index, index, None))


class _Keys(NamedTuple):
    position: Tensor  # of each key, as a part sees it, int64 [1 or B, Sk]
    token: Tensor | None  # where it is in the sequence; None where parts see other positions
    packed: Tensor | None  # the sequence of each token, where a part around keeps them apart


def _visible(function: MaskFunction, keys: _Keys) -> Rows | None:
    position = keys.position
    name, arguments = parts_of(function)
    if name == "causal":
        return Rows(position, torch.full_like(position, _FAR))
    if name == "bidirectional":
        return Rows(torch.zeros_like(position), torch.full_like(position, _FAR))
    if name == "sliding_window_overlay":
        return Rows(torch.zeros_like(position), position + arguments[0])
    if name == "sliding_window_bidirectional_overlay":
        return Rows(position - arguments[0], position + (arguments[0] + 1))
    if name == "chunked_overlay":
        size, padding = arguments[0], arguments[1][:, None]
        first = (position - padding) // size * size + padding
        return Rows(first, first + size)
    if name == "and_masks":
        return _visible_to_all(arguments, keys)
    if name == "or_masks":
        return _visible_to_any(arguments, keys)
    if name == "packed_sequence_mask_function":
        return _same_number(arguments[0], keys.token)
    if name == "blockwise_overlay":
        return _same_number(arguments[0].clamp_min(-1), keys.token, nobody=-1)
    if name == "remap_positions_for_packed_sequence":
        return _visible_in_sequences(arguments[0], arguments[1], keys)
    return None


def _visible_to_all(functions: tuple[MaskFunction, ...], keys: _Keys) -> Rows | None:
    for function in functions:
        name, arguments = parts_of(function)
        if name == "packed_sequence_mask_function":
            keys = _Keys(keys.position, keys.token, arguments[0])
    rows = Rows(torch.zeros_like(keys.position), torch.full_like(keys.position, _FAR))
    for function in functions:
        part = _visible(function, keys)
        if part is None:
            return None
        rows = rows & part
    return rows


def _visible_to_any(functions: tuple[MaskFunction, ...], keys: _Keys) -> Rows | None:
    rows = Rows(torch.zeros_like(keys.position), torch.zeros_like(keys.position))
    for function in functions:
        part = _visible(function, keys)
        if part is None:
            return None
        nothing_yet, no_more = rows.end <= rows.first, part.end <= part.first
        touch = (rows.first <= part.end) & (part.first <= rows.end)
        if not _holds(touch | nothing_yet | no_more, "the parts of an or-mask leave a gap"):
            return None
        first = rows.first.where(no_more, torch.minimum(rows.first, part.first))
        end = rows.end.where(no_more, torch.maximum(rows.end, part.end))
        rows = Rows(part.first.where(nothing_yet, first), part.end.where(nothing_yet, end))
    return rows


def _visible_in_sequences(function: MaskFunction, position_ids: Tensor, keys: _Keys) -> Rows | None:
    """Reads a part that is given positions within packed sequences.

    By itself it lets sequences see one another. Only next to the part that keeps them apart, and
    where the positions within a sequence ascend by one, the rows are an interval.
    """
    if keys.token is None or keys.packed is None:
        return None
    ascend = (position_ids.diff(dim=-1) == 1) | (keys.packed.diff(dim=-1) != 0)
    if not _holds(ascend, "the positions of a packed sequence do not ascend by one"):
        return None
    sequence = _same_number(keys.packed, keys.token)
    position = _take(position_ids, keys.token)
    rows = _visible(function, _Keys(position, None, None))
    if sequence is None or rows is None:
        return None
    shift = keys.token - position
    return Rows(rows.first + shift, rows.end + shift) & sequence


def _same_number(numbers: Tensor, index: Tensor | None, nobody: int | None = None) -> Rows | None:
    """Returns the rows with the number of each key, provided that equal numbers are neighbors.

    Args:
        numbers: one per token, int ``[B, S]``.
        index: the tokens that the keys are.
        nobody: a number whose tokens do not even see one another; the lowest.
    """
    if index is None:
        return None
    if torch.compiler.is_compiling():
        runs, different = _count_runs(numbers, nobody), _count_runs(numbers.sort(-1)[0], nobody)
        _holds(runs == different, "tokens of one sequence or block are not neighbors")
    try:
        mask = from_document_ids(numbers, causal=False, padding_id=nobody)
    except ValueError:  # equal numbers which are not neighbors
        return None
    assert mask.startend_row_indices is not None
    end, first = mask.startend_row_indices[:, 0].long().unbind(-1)
    return Rows(_take(first, index), _take(end, index))


def _count_runs(numbers: Tensor, nobody: int | None) -> Tensor:
    begins = numbers[:, 1:] != numbers[:, :-1]
    if nobody is None:
        return begins.sum(-1)
    return (begins & (numbers[:, 1:] != nobody)).sum(-1) + (numbers[:, 0] != nobody)


def _take(table: Tensor, index: Tensor) -> Tensor:
    return table.gather(1, index.expand(table.shape[0], -1))


def _holds(condition: Tensor, sentence: str) -> bool:
    """Whether a condition holds everywhere; compiled code checks that when it runs."""
    if torch.compiler.is_compiling():
        torch._assert_async(condition.all(), f"{sentence}; make the mask outside of torch.compile")
        return True
    return bool(condition.all())


def evaluated(
    function: MaskFunction,
    batch: int,
    seqlen_q: int,
    seqlen_k: int,
    q_offset: int | Tensor,
    kv_offset: int | Tensor,
    *,
    keep: Tensor | None,
    elementwise: bool,
    device: torch.device | str,
) -> Tensor:
    """Returns the lowered bounds of any mask function, by evaluating it in blocks of columns.

    Args:
        function: a mask function of transformers.
        batch: B.
        seqlen_q: Sq.
        seqlen_k: Sk.
        q_offset: position of the first row.
        kv_offset: position of the first key.
        keep: bool ``[B, Sk]``, False hides a key; or None.
        elementwise: whether the function takes tensors that broadcast, and not only numbers.
        device: where the tensors that the function reads are.

    Returns:
        int32 ``[B, 1, Sk, 4]``.

    Raises:
        NotImplementedError: while compiling.
        ValueError: a column hides more than two separate intervals of rows.
    """
    name = getattr(function, "__qualname__", repr(function))
    if torch.compiler.is_compiling():
        raise NotImplementedError(
            f"attn_implementation='flashmask' cannot read the mask function {name} inside "
            f"torch.compile; make the mask outside and pass it as attention_mask, see "
            f"flashmask.interop.transformers.as_attention_mask"
        )

    def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        q, kv = q_idx + q_offset, kv_idx + kv_offset
        if elementwise:
            visible = function(b, h, q, kv)
        else:
            # Needed by functions that index with a number: vmap would ask for its value.
            with _get_item_to_index():
                by_kv = torch.vmap(function, in_dims=(None, None, None, 0))
                visible = torch.vmap(by_kv, in_dims=(None, None, 0, None))(b, h, q[:, 0], kv[0])
        return torch.as_tensor(visible) if keep is None else visible & keep[b, kv_idx]

    try:
        mask = from_mask_mod(mask_mod, batch, None, seqlen_q, seqlen_k, device=device)
    except ValueError as error:
        raise ValueError(
            f"attn_implementation='flashmask' cannot express the mask function {name}: {error}"
        ) from error
    return mask.lowered().transpose(2, 3).contiguous()


def _get_item_to_index() -> Any:
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    return TransformGetItemToIndex()
