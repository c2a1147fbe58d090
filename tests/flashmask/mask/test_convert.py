# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Conversions from and to dense masks, mask_mods and BlockMasks, and the fallback by rows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import (
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

from flashmask import FlashMask, masks
from flashmask.mask import convert
from tests.flashmask.mask.oracle import intervals_of, random_bounds
from tests.flashmask.mask.test_compose import dense_masks


@given(random_bounds(max_size=20))
def test_dense_round_trip(case):
    bounds, causal, rows, _ = case
    dense = FlashMask(bounds, causal=causal, seqlen_q=rows).to_dense()
    assert torch.equal(masks.from_dense(dense).to_dense(), dense)
    assert torch.equal(masks.to_dense(masks.from_dense(dense[0])), dense[0][:, None])
    assert torch.equal(masks.from_dense(dense[0, 0]).to_dense(), dense[:1, :1])


def test_dense_mask_that_does_not_fit_names_its_first_column():
    visible = torch.ones(2, 1, 12, 5, dtype=torch.bool)
    visible[1, 0, [0, 3, 4, 8], 2] = False
    visible[1, 0, ::2, 3] = False
    with pytest.raises(
        ValueError,
        match=r"the dense mask does not fit: column 2 of batch entry 1, mask head 0, hides 3 "
        r"separate intervals of rows, \[0, 1\), \[3, 5\), \[8, 9\), and bounds hold two",
    ):
        masks.from_dense(visible)


def test_dense_mask_must_be_boolean():
    with pytest.raises(TypeError, match=r"boolean tensor.*float32"):
        masks.from_dense(torch.zeros(3, 3))
    with pytest.raises(ValueError, match=r"but its shape is \(3,\)"):
        masks.from_dense(torch.ones(3, dtype=torch.bool))


@settings(max_examples=30)
@given(random_bounds(max_size=20))
def test_mask_mod_round_trip(case):
    bounds, causal, rows, columns = case
    mask = FlashMask(bounds, causal=causal, seqlen_q=rows)
    batch, heads = bounds.shape[:2]
    mod = mask.to_mask_mod()
    for limit in (1, 50, 2**20):
        again = masks.from_mask_mod(mod, batch, heads, rows, columns, max_dense_elements=limit)
        assert torch.equal(again.to_dense(), mask.to_dense())
    if rows and columns:
        assert torch.equal(create_mask(mod, batch, heads, rows, columns, "cpu"), mask.to_dense())


def test_mask_mod_shares_mask_heads_and_batch():
    bounds = masks.random_eviction(300, first_row=20, heads=2).startend_row_indices
    blocks = torch.randint(0, 2, (3, 4, 3, 3), dtype=torch.int32)
    mask = FlashMask(bounds, causal=True, block_mask=blocks)
    dense = create_mask(mask.to_mask_mod(num_heads=8), 3, 8, 300, 300, "cpu")
    assert torch.equal(dense, mask.to_dense().repeat_interleave(2, dim=1))
    with pytest.raises(ValueError, match="num_heads must be a multiple of 4"):
        mask.to_mask_mod(num_heads=6)


def test_mask_mod_works_in_flex_attention():
    mask = masks.global_sliding_window(256, num_global=5, left=20, right=9)
    q, k, v = torch.randn(3, 1, 2, 256, 16).unbind(0)
    block_mask = create_block_mask(mask.to_mask_mod(), None, None, 256, 256, device="cpu")
    with pytest.warns(UserWarning, match="without torch.compile"):
        out = flex_attention(q, k, v, block_mask=block_mask)
    scores = (q @ k.mT / math.sqrt(16)).masked_fill(~mask.to_dense(), -torch.inf)
    torch.testing.assert_close(out, scores.softmax(-1) @ v)


def causal_mod(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def test_mask_mods_of_users_become_masks():
    documents = torch.tensor([0] * 100 + [1] * 150 + [2] * 50)

    def same_document(b, h, q_idx, kv_idx):
        return documents[q_idx] == documents[kv_idx]

    mask = masks.from_mask_mod(and_masks(causal_mod, same_document), None, None, 300, 300)
    expected = masks.causal_document([100, 150, 50])
    assert torch.equal(mask.startend_row_indices, expected.startend_row_indices)
    assert mask.causal
    assert masks.from_mask_mod(lambda b, h, q, k: q >= 0, 2, 3, 5, 4).to_dense().all()
    assert masks.from_mask_mod(lambda b, h, q, k: q + k < b + h, 2, 2, 3, 3)[1].to_dense()[
        0, 1, 0, 0
    ]


def test_mask_mod_that_does_not_fit_names_its_column():
    def strided(b, h, q_idx, kv_idx):
        return ((q_idx - kv_idx) % 4 == 0) | (kv_idx < 7)

    with pytest.raises(ValueError, match=r"the mask_mod does not fit: column 7 of batch entry 0"):
        masks.from_mask_mod(strided, None, None, 40, 40, max_dense_elements=130)


class Watched:
    """The causal `mask_mod`, which notes the most elements it was ever asked for at once."""

    def __init__(self):
        self.most = 0

    def __call__(self, b, h, q_idx, kv_idx):
        visible = q_idx >= kv_idx
        self.most = max(self.most, visible.numel())
        return visible


def test_no_evaluation_is_larger_than_the_limit():
    mod = Watched()
    mask = masks.from_mask_mod(mod, None, None, 300, 200, max_dense_elements=1000)
    assert torch.equal(mask.to_dense()[0, 0], torch.ones(300, 200).tril().bool())
    assert 300 <= mod.most <= 1000
    mod = Watched()
    masks.from_mask_mod(mod, None, None, 4096, 4096)
    assert 0 < mod.most <= convert.MAX_MOD_ELEMENTS < 4096**2


def test_a_block_mask_is_evaluated_one_column_of_blocks_at_a_time():
    block_mask = create_block_mask(causal_mod, None, None, 512, 512, device="cpu")
    block_mask.mask_mod = mod = Watched()
    assert masks.from_block_mask(block_mask).causal
    assert 0 < mod.most <= 128 * 128  # of a column of blocks, only one is partial


@pytest.mark.parametrize("sizes", [(256, 256), (300, 200), (100, 400)])
@pytest.mark.parametrize("block", [128, (64, 32)])
def test_block_mask_round_trip(sizes, block):
    rows, columns = sizes

    def window(b, h, q_idx, kv_idx):
        return (q_idx - kv_idx <= 40 + 30 * h) & (kv_idx - q_idx <= 50)

    block_mask = create_block_mask(window, 1, 2, rows, columns, device="cpu", BLOCK_SIZE=block)
    expected = create_mask(window, 1, 2, rows, columns, "cpu")
    assert torch.equal(masks.from_block_mask(block_mask).to_dense(), expected)


def test_full_and_absent_blocks_of_a_block_mask_need_no_mask_mod():
    block_mask = create_block_mask(causal_mod, None, None, 512, 512, device="cpu")
    seen = []

    def recording(b, h, q_idx, kv_idx):
        seen.append(q_idx.numel() * kv_idx.numel())
        return q_idx >= kv_idx

    block_mask.mask_mod = recording
    mask = masks.from_block_mask(block_mask)
    assert torch.equal(mask.startend_row_indices, masks.causal(512).startend_row_indices)
    assert sum(seen) == 4 * 128 * 128


def check_segments(segments, visible):
    """Segments cover the rows, equal the mask, and none could be longer."""
    rows = visible.shape[2]
    assert [s.row_start for s in segments] == [0, *[s.row_stop for s in segments[:-1]]][
        : len(segments)
    ]
    assert (segments[-1].row_stop if segments else 0) == rows
    for start, stop, mask in segments:
        assert mask.seqlen_q == stop - start
        assert torch.equal(mask.to_dense(), visible[:, :, start:stop])
        if stop < rows:
            longer = (~visible[:, :, start : stop + 1]).numpy()
            columns = longer.transpose(0, 1, 3, 2).reshape(-1, stop + 1 - start)
            assert max(len(intervals_of(column)) for column in columns) > 2


@given(dense_masks(max_size=14))
def test_split_rows_is_exact_and_greedy(visible):
    segments = masks.split_rows(visible)
    check_segments(segments, visible)
    batch, heads, rows, columns = visible.shape

    def mod(b, h, q_idx, kv_idx):
        return visible[b, h, q_idx, kv_idx]

    by_mod = masks.split_rows(
        mod, batch=batch, heads=heads, seqlen_q=rows, seqlen_k=columns, max_dense_elements=30
    )
    assert [s[:2] for s in by_mod] == [s[:2] for s in segments]
    check_segments(by_mod, visible)
    lists = [intervals_of(~visible[0, 0, :, j].numpy())[::-1] for j in range(columns)]
    check_segments(masks.split_rows(lists, seqlen_q=rows), visible[:1, :1])


def test_scattered_global_rows_by_segments():
    size = 400
    rows = torch.arange(size)
    visible = (rows[:, None] >= rows) & ((rows[:, None] - rows < 30) | (rows[:, None] % 90 == 5))
    with pytest.raises(ValueError, match="split_rows"):
        masks.from_dense(visible)
    segments = masks.split_rows(visible)
    assert len(segments) <= 5
    q, k, v = torch.randn(3, size, 8).unbind(0)

    def attention(q, visible):
        return (q @ k.mT).masked_fill(~visible, -torch.inf).softmax(-1) @ v

    parts = [attention(q[start:stop], mask.to_dense()[0, 0]) for start, stop, mask in segments]
    torch.testing.assert_close(torch.cat(parts), attention(q, visible))


def test_split_rows_asks_for_missing_sizes():
    with pytest.raises(ValueError, match="seqlen_q and seqlen_k must be given"):
        masks.split_rows(causal_mod, seqlen_q=4)
    with pytest.raises(ValueError, match="seqlen_q must be given"):
        masks.split_rows([[(0, 1)]])


def test_a_mask_that_fits_is_one_segment():
    (segment,) = masks.split_rows(masks.causal(50).to_dense())
    assert segment[:2] == (0, 50)
    assert torch.equal(segment.mask.startend_row_indices, masks.causal(50).startend_row_indices)


@given(st.integers(0, 2))
def test_no_rows_no_segments(columns):
    assert masks.split_rows(torch.ones(0, columns, dtype=torch.bool)) == []
