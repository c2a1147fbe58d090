# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Intervals, encoding and composition against dense masks."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from flashmask import FlashMask, masks
from flashmask.mask.encode import encode
from flashmask.mask.intervals import hidden_by_dense, hidden_by_lowered
from flashmask.mask.lowering import lower
from tests.flashmask.mask.oracle import dense_from_bounds, intervals_of, random_bounds


@st.composite
def dense_masks(draw, max_size=12):
    shape = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.integers(0, max_size)),
        draw(st.integers(0, max_size)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.rand(shape, generator=generator) < draw(st.sampled_from([0.2, 0.5, 0.9, 1.0]))


def columns_of(visible):
    """Intervals of every column, [b][h][j], by walking."""
    hidden = ~np.asarray(visible)
    return [[[intervals_of(col) for col in head.T] for head in entry] for entry in hidden]


def as_lists(hidden):
    batch, heads, _, columns = hidden.starts.shape
    return [
        [[hidden.of_column(b, h, j) for j in range(columns)] for h in range(heads)]
        for b in range(batch)
    ]


@given(dense_masks())
def test_intervals_of_a_dense_mask(visible):
    assert as_lists(hidden_by_dense(visible)) == columns_of(visible)


@given(random_bounds(max_size=15))
def test_intervals_of_lowered_bounds(case):
    hidden = hidden_by_lowered(lower(*case), case[2])
    assert as_lists(hidden) == columns_of(dense_from_bounds(*case))
    assert int(hidden.counts.sum()) == sum(
        len(column) for entry in as_lists(hidden) for head in entry for column in head
    )


@given(random_bounds())
def test_encoding_keeps_the_mask(case):
    bounds, causal, rows, columns = case
    new_bounds, new_causal = encode(lower(*case), rows)
    assert new_bounds.dtype == torch.int32
    assert new_bounds.shape[-1] <= max(bounds.shape[-1], 1 if causal else 2)
    assert np.array_equal(
        dense_from_bounds(new_bounds, new_causal, rows, columns), dense_from_bounds(*case)
    )


@pytest.mark.parametrize(
    ("mask", "form"),
    [
        (masks.full(40), (2, False)),
        (masks.causal(40), (1, True)),
        (masks.causal_document([10, 30]), (1, True)),
        (masks.document([10, 30]), (2, False)),
        (masks.causal_blockwise([10, 20, 10]), (2, True)),
        (masks.prefix_lm(40, 7), (2, False)),
        (masks.global_sliding_window(40, num_global=3, left=4, right=4), (4, False)),
        (masks.causal(40, seqlen_q=50), (1, True)),
        (masks.causal(40, seqlen_q=9), (1, True)),
    ],
)
def test_encoding_finds_the_smallest_form(mask, form):
    bounds, causal = encode(mask.lowered(), mask.seqlen_q)
    assert (bounds.shape[-1], causal) == form


@st.composite
def pairs_of_masks(draw):
    first = draw(random_bounds(max_size=15))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    rows, columns = first[2:]
    causal, count = draw(st.sampled_from([(True, 1), (True, 2), (False, 2), (False, 4)]))
    shape = (draw(st.sampled_from([1, first[0].shape[0]])), 1, columns, count)
    second = torch.randint(0, rows + 1, shape, generator=generator, dtype=torch.int32)
    return FlashMask(first[0], causal=first[1], seqlen_q=rows), FlashMask(
        second, causal=causal, seqlen_q=rows
    )


@given(pairs_of_masks(), st.sampled_from(["and", "or"]))
def test_composition_equals_the_dense_one_or_names_a_column(pair, operation):
    a, b = pair
    dense = [mask.to_dense() for mask in pair]
    expected = dense[0] & dense[1] if operation == "and" else dense[0] | dense[1]
    columns = columns_of(expected)
    worst = [
        (entry, head, j, runs)
        for entry, heads in enumerate(columns)
        for head, runs_of in enumerate(heads)
        for j, runs in enumerate(runs_of)
        if len(runs) > 2
    ]
    if not worst:
        result = a & b if operation == "and" else a | b
        assert torch.equal(result.to_dense(), expected)
        return
    entry, _, j, runs = worst[0]
    with pytest.raises(ValueError, match=r"masks\.split_rows") as error:
        _ = a & b if operation == "and" else a | b
    assert (
        f"mask_{operation}(a, b) does not fit: column {j} of batch entry {entry}, mask head "
        in (str(error.value))
    )
    assert ", ".join(f"[{start}, {stop})" for start, stop in runs) in str(error.value)
    combine = masks.hidden_rows_and if operation == "and" else masks.hidden_rows_or
    segments = masks.split_rows(combine(a, b))
    assert torch.equal(torch.cat([s.mask.to_dense() for s in segments], dim=2), expected)


def test_composition_gives_familiar_masks():
    lengths = [20, 44]
    window = masks.sliding_window(64, window=9)
    both = masks.causal_document(lengths) & window
    same = masks.document_window(lengths, window=9)
    assert both.causal
    assert torch.equal(both.startend_row_indices, same.startend_row_indices)
    prefix = masks.causal(64) | masks.key_padding(64, 10, causal=False)
    assert torch.equal(prefix.to_dense(), masks.prefix_lm(64, 10).to_dense())
    plain = FlashMask(causal=True, seqlen_q=64) & masks.document(lengths)
    assert torch.equal(
        plain.startend_row_indices, masks.causal_document(lengths).startend_row_indices
    )


@given(st.integers(0, 2**31))
def test_block_masks_are_combined(seed):
    generator = torch.Generator().manual_seed(seed)
    blocks = [
        torch.randint(0, 2, shape, generator=generator, dtype=torch.int32)
        for shape in [(1, 2, 2, 2), (2, 4, 2, 2)]
    ]
    a = FlashMask(causal=True, seqlen_q=200, block_mask=blocks[0])
    b = FlashMask(masks.document([90, 110]).startend_row_indices, block_mask=blocks[1])
    expected = a.to_dense().repeat_interleave(2, dim=1) & b.to_dense()
    assert torch.equal((a & b).to_dense(), expected)
    same = FlashMask(causal=True, seqlen_q=200, block_mask=blocks[1])
    assert torch.equal((same | b).to_dense(), same.to_dense() | b.to_dense())
    assume(not torch.equal(blocks[0].repeat_interleave(2, 1).expand(2, -1, -1, -1), blocks[1]))
    with pytest.raises(ValueError, match="the same block_mask in both"):
        _ = a | b


def test_composition_is_fast_for_long_sequences():
    size = 2**17
    result = masks.sliding_window(size, window=1024) & masks.causal_document([size // 8] * 8)
    assert result.startend_row_indices.shape == (1, 1, size, 1)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (masks.causal(8), masks.causal(9), "same seqlen_q and seqlen_k"),
        (masks.document([[8], [8]]), masks.document([[8]] * 3), "same batch, or one of them 1"),
        (
            masks.random_eviction(8, first_row=2, heads=2),
            masks.random_eviction(8, first_row=2, heads=3),
            "must divide",
        ),
    ],
)
def test_masks_that_do_not_go_together(a, b, message):
    for combine in (masks.mask_and, masks.mask_or):
        with pytest.raises(ValueError, match=message):
            combine(a, b)
