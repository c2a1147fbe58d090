# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Masks from cumulative lengths, ids and padding masks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashmask import masks

lengths_of_documents = st.lists(st.integers(0, 9), max_size=6)


def cumulative(lengths):
    return torch.tensor([0, *np.cumsum(lengths, dtype=int)], dtype=torch.int32)


def same_documents(lengths, total):
    ids = np.full(total, -1)
    ids[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    return (ids[:, None] == ids) & (ids >= 0)


@given(lengths_of_documents, st.booleans(), st.integers(0, 5))
def test_cumulative_lengths(lengths, causal, padding):
    total = sum(lengths) + padding
    seqlen = total if padding else None
    mask = masks.from_cu_seqlens(cumulative(lengths), causal=causal, seqlen=seqlen)
    i, j = np.arange(total)[:, None], np.arange(total)
    expected = same_documents(lengths, total) & ((i >= j) | (not causal))
    assert np.array_equal(mask.to_dense()[0, 0].numpy(), expected)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5), st.booleans())
def test_cumulative_lengths_of_queries_and_keys(pairs, causal):
    q_lengths, k_lengths = [p[0] for p in pairs], [p[1] for p in pairs]
    mask = masks.from_cu_seqlens(
        cumulative(q_lengths),
        cumulative(k_lengths),
        causal=causal,
        seqlen=sum(q_lengths) + 2,
        seqlen_k=sum(k_lengths) + 3,
    )
    expected = np.zeros((sum(q_lengths) + 2, sum(k_lengths) + 3), dtype=bool)
    q_start = k_start = 0
    for q_length, k_length in pairs:
        block = np.ones((q_length, k_length), dtype=bool)
        if causal:
            block = np.tril(block, k_length - q_length)
        expected[q_start : q_start + q_length, k_start : k_start + k_length] = block
        q_start, k_start = q_start + q_length, k_start + k_length
    assert np.array_equal(mask.to_dense()[0, 0].numpy(), expected)


@given(st.lists(lengths_of_documents, min_size=1, max_size=3), st.booleans())
def test_document_ids_and_position_ids(batch, causal):
    size = 60
    ids = torch.zeros(len(batch), size, dtype=torch.int64)
    positions = torch.zeros_like(ids)
    for entry, lengths in enumerate(batch):
        filled = [*lengths, size - sum(lengths)]
        ids[entry] = torch.arange(len(filled)).repeat_interleave(torch.tensor(filled)) * 3 + 1
        positions[entry] = torch.cat([torch.arange(length) for length in filled])
    expected = (ids[:, :, None] == ids[:, None, :])[:, None]
    if causal:
        expected = expected.tril()
    assert torch.equal(masks.from_document_ids(ids, causal=causal).to_dense(), expected)
    assert torch.equal(masks.from_position_ids(positions, causal=causal).to_dense(), expected)


@pytest.mark.parametrize("causal", [True, False])
def test_packed_ids_with_padding(causal):
    ids = torch.tensor([[1, 1, 2, 2, 2, 0, 0], [0, 1, 1, 0, 2, 2, 0]])
    expected = ((ids[:, :, None] == ids[:, None, :]) & (ids[:, None, :] != 0))[:, None]
    if causal:
        expected = expected.tril()
    mask = masks.from_padding_mask(ids, causal=causal, packed=True)
    assert torch.equal(mask.to_dense(), expected)
    fewer = masks.from_padding_mask(ids, causal=causal, packed=True, seqlen_q=3)
    assert torch.equal(fewer.to_dense(), expected[:, :, -3:])


@given(st.integers(0, 2**31), st.booleans(), st.sampled_from([None, 0, 1, 3, 9]))
def test_padding_masks(seed, causal, rows):
    rng = np.random.default_rng(seed)
    keep = torch.tensor(rng.integers(0, 2, (3, 9)))
    seqlen_q = 9 if rows is None else rows
    expected = keep.bool()[:, None, None, :].expand(3, 1, seqlen_q, 9)
    if causal:
        expected = expected.tril(9 - seqlen_q)
    for mask_like in (keep, keep.bool(), keep.float()):
        mask = masks.from_padding_mask(mask_like, causal=causal, seqlen_q=rows)
        assert torch.equal(mask.to_dense(), expected)
        assert mask.startend_row_indices.shape[-1] == (1 if causal else 2)


def test_padding_masks_equal_the_builders():
    keep = torch.arange(8) < torch.tensor([[8], [5], [0]])
    mask = masks.from_padding_mask(keep)
    assert torch.equal(
        mask.startend_row_indices, masks.key_padding(8, [8, 5, 0]).startend_row_indices
    )


BAD = {
    "descending": (lambda: masks.from_cu_seqlens(torch.tensor([0, 5, 3])), "must ascend from 0"),
    "not from zero": (lambda: masks.from_cu_seqlens(torch.tensor([1, 5])), "must ascend from 0"),
    "too long": (
        lambda: masks.from_cu_seqlens(torch.tensor([0, 5]), seqlen=4),
        "at most 4 tokens, but ends with 5",
    ),
    "rank": (lambda: masks.from_cu_seqlens(torch.zeros(1, 2)), r"shape is \(1, 2\)"),
    "counts": (
        lambda: masks.from_cu_seqlens(torch.tensor([0, 5]), torch.tensor([0, 2, 3])),
        "same number of documents, but have 1 and 2",
    ),
    "pieces": (
        lambda: masks.from_document_ids(torch.tensor([[1, 1, 2], [4, 3, 4]])),
        "document 4 of batch entry 1 is in 2 pieces",
    ),
    "not packed": (
        lambda: masks.from_padding_mask(torch.tensor([[1, 2, 0]])),
        "say packed=True",
    ),
    "padding rank": (lambda: masks.from_padding_mask(torch.ones(3)), "2 dimensions"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_say_what_is_wrong(name):
    convert, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        convert()


@pytest.mark.parametrize(
    ("convert", "inputs"),
    [
        (masks.from_position_ids, [torch.tensor([[0, 1, 0, 1]]), torch.tensor([[0, 1, 2, 3]])]),
        (masks.from_document_ids, [torch.tensor([[5, 5, 6, 6]]), torch.tensor([[1, 2, 3, 3]])]),
        (masks.from_padding_mask, [torch.tensor([[0, 1, 1, 1]]), torch.tensor([[1, 1, 0, 0]])]),
    ],
)
def test_conversion_compiles_in_one_graph(convert, inputs):
    def function(values):
        return convert(values).startend_row_indices

    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for values in inputs:
        assert torch.equal(compiled(values), function(values))


@pytest.mark.parametrize("shape", [(), (2, 1, 4)])
def test_ids_have_one_number_per_token(shape):
    ids = torch.zeros(shape, dtype=torch.int64)
    for convert, name in ((masks.from_position_ids, "position"), (masks.from_document_ids, "doc")):
        with pytest.raises(ValueError, match=rf"{name}.*_ids must be \[S\] or \[B, S\]"):
            convert(ids)
