# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Lowered bounds and dense masks against the definition of the bounds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flashmask.mask.dense import bounds_to_dense, lowered_to_dense
from flashmask.mask.lowering import lower
from tests.flashmask.mask.oracle import dense_from_bounds, dense_with_block_mask, random_bounds


@given(random_bounds())
def test_lowered_bounds_mean_the_same(case):
    bounds, _, seqlen_q, seqlen_k = case
    lowered = lower(*case)
    assert lowered.dtype == torch.int32
    assert lowered.shape == (*bounds.shape[:2], 4, seqlen_k)
    expected = dense_from_bounds(*case)
    assert np.array_equal(lowered_to_dense(lowered, seqlen_q).numpy(), expected)
    assert np.array_equal(bounds_to_dense(*case).numpy(), expected)


@given(random_bounds())
def test_lowered_bounds_are_clamped_and_canonical(case):
    lts, lte, uts, ute = lower(*case).unbind(2)
    rows = case[2]
    for bound in (lts, lte, uts, ute):
        assert ((bound >= 0) & (bound <= rows)).all()
    assert ((lts < lte) | ((lts == rows) & (lte == rows))).all()
    assert ((uts < ute) | ((uts == 0) & (ute == 0))).all()


@given(random_bounds())
def test_lowering_twice_changes_nothing(case):
    rows, columns = case[2:]
    once = lower(*case)
    assert torch.equal(lower(once.transpose(2, 3), False, rows, columns), once)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (7, 3), (0, 4), (4, 0), (1, 9)])
def test_no_bounds_is_plain_attention(causal, rows, columns):
    dense = lowered_to_dense(lower(None, causal, rows, columns), rows)
    assert np.array_equal(dense.numpy(), dense_from_bounds(None, causal, rows, columns))


def test_causal_is_aligned_to_the_bottom_right():
    dense = bounds_to_dense(None, True, 2, 4)
    assert dense[0, 0].tolist() == [[True, True, True, False], [True, True, True, True]]
    assert not bounds_to_dense(None, True, 4, 2)[0, 0, :2].any()


@pytest.mark.parametrize(("causal", "count"), [(True, 4), (False, 1), (True, 3), (False, 3)])
def test_other_forms_are_refused(causal, count):
    bounds = torch.zeros(1, 1, 4, count, dtype=torch.int32)
    with pytest.raises(ValueError, match=f"has {count} with causal={causal}"):
        lower(bounds, causal, 4, 4)


@given(st.integers(0, 2**31), st.sampled_from([(200, 300), (128, 129), (300, 5), (0, 130)]))
def test_block_mask_hides_whole_blocks(seed, sizes):
    rng = np.random.default_rng(seed)
    rows, columns = sizes
    blocks = torch.tensor(rng.integers(0, 2, (2, 2, -(-rows // 128), -(-columns // 128))))
    bounds = torch.tensor(rng.integers(0, rows + 1, (1, 1, columns, 2)), dtype=torch.int32)
    dense = bounds_to_dense(bounds, True, rows, columns, blocks)
    expected = dense_with_block_mask(dense_from_bounds(bounds, True, rows, columns), blocks)
    assert np.array_equal(dense.numpy(), expected)
    part = bounds_to_dense(bounds, True, rows, columns, blocks, rows=(rows // 3, rows // 2))
    assert torch.equal(part, dense[:, :, rows // 3 : rows // 2])


def test_heads_of_bounds_and_block_mask_are_shared_in_groups():
    bounds = torch.tensor([4, 0], dtype=torch.int32).reshape(1, 2, 1, 1)
    blocks = torch.tensor([1, 0, 1, 1]).reshape(1, 4, 1, 1)
    dense = bounds_to_dense(bounds, True, 4, 1, blocks)
    # Column 0 of the bounds is visible in head 0 only, which heads 0 and 1 of the block mask share,
    # and of these the block mask drops head 1. Of four rows and one key, the last row sees the key.
    assert dense[0, :, :, 0].any(-1).tolist() == [True, False, False, False]


def test_dense_refuses_what_is_too_large():
    with pytest.raises(ValueError, match="more than the limit max_elements=100"):
        bounds_to_dense(None, True, 11, 10, max_elements=100)
    assert bounds_to_dense(None, True, 11, 10, rows=(0, 10), max_elements=100).shape[2] == 10
