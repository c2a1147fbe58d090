# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The recorded cases: the builders give the recorded bounds, the tile rule the recorded counts."""

import hashlib

import numpy as np
import pytest
import torch

from flashmask import masks
from flashmask.mask.counts import exact_visible_pairs, visible_keys_per_row
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.lowering import lower
from flashmask.mask.tiles import tile_counts
from tests.flashmask.mask.oracle import CASES, dense_from_bounds, dense_with_block_mask


def per_head(case, draw):
    """Draw bounds for every batch entry and head from its own generator."""
    seed = case["mask"]["params"]["seed"]
    heads = [
        [draw(np.random.default_rng(seed + 1009 * b + h)) for h in range(case["mask"]["heads"])]
        for b in range(case["B"])
    ]
    return torch.tensor(np.array(heads, dtype=np.int32))


def random_intervals(case):
    params = case["mask"]["params"]
    shape = (case["Sk"], params["bounds"])
    low, high = params.get("lo", 0), case["Sq"] + 1 + params.get("hi_extra", 0)
    bounds = per_head(case, lambda rng: rng.integers(low, high, shape))
    return FlashMask(bounds, causal=params["causal"], seqlen_q=case["Sq"])


def lt_above_ut(case):
    params, rows = case["mask"]["params"], case["Sq"]
    base = np.array(params["base"])

    def draw(rng):
        return np.clip(base + rng.integers(0, params["jitter"], (case["Sk"], 4)), 0, rows)

    return FlashMask(per_head(case, draw), seqlen_q=rows)


def random_eviction(case):
    params, size = case["mask"]["params"], case["Sk"]

    def draw(rng):
        order = rng.permutation(size)
        evicted_at = np.full(size, size)
        for row in range(params["start_row"], size):
            for key in order:
                if key < row and evicted_at[key] == size:
                    evicted_at[key] = row
                    break
        return evicted_at

    return masks.eviction(per_head(case, draw))


def hash_sparse(case):
    params = case["mask"]["params"]
    rng = np.random.default_rng(params["seed"])
    buckets = [torch.tensor(rng.integers(0, params["buckets"], case["Sk"])) for _ in range(2)]
    return masks.hash_sparse(*buckets)


def batched(case, name):
    """A parameter, as a list with one entry per batch entry where the case gives several."""
    if "per_batch" in case["mask"]:
        return [entry[name] for entry in case["mask"]["per_batch"]]
    return case["mask"]["params"][name]


def with_params(builder):
    return lambda case: builder(case["Sk"], **case["mask"]["params"])


BUILD = {
    "full": lambda case: masks.full(case["Sk"], seqlen_q=case["Sq"]),
    "causal": lambda case: masks.causal(case["Sk"], seqlen_q=case["Sq"]),
    "sliding_window_causal": with_params(masks.sliding_window),
    "causal_document": lambda case: masks.causal_document(batched(case, "lens")),
    "document": lambda case: masks.document(batched(case, "lens")),
    "shared_question": lambda case: masks.shared_question(batched(case, "docs")),
    "causal_blockwise": lambda case: masks.causal_blockwise(batched(case, "lens")),
    "prefix_lm_document": lambda case: masks.prefix_lm_document(batched(case, "docs")),
    "hash_sparse": hash_sparse,
    "random_eviction": random_eviction,
    "block_causal": lambda case: masks.block_causal(case["Sk"], block=batched(case, "frame")),
    "doc_window_causal": lambda case: masks.document_window(
        batched(case, "lens"), window=batched(case, "window")
    ),
    "left_padding": lambda case: masks.left_padding(case["Sk"], batched(case, "pad")),
    "random_intervals": random_intervals,
    "lt_above_ut": lt_above_ut,
}


def build(case):
    mask = BUILD[case["mask"]["family"]](case)
    heads = case["mask"]["heads"]
    bounds = mask.startend_row_indices.expand(case["B"], heads, -1, -1).contiguous()
    block_mask = None
    if "block_mask_seed" in case:
        blocks = (-(-case["Sq"] // 128), -(-case["Sk"] // 128))
        seeded = {**case, "mask": {**case["mask"], "params": {"seed": case["block_mask_seed"]}}}
        block_mask = per_head(seeded, lambda rng: rng.integers(0, 2, blocks))
    return FlashMask(bounds, causal=mask.causal, seqlen_q=case["Sq"], block_mask=block_mask)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_recorded_case(case):
    mask, expected = build(case), case["expect"]
    bounds = mask.startend_row_indices
    assert (mask.causal, bounds.shape[-1]) == (expected["causal"], expected["bounds"])
    assert list(bounds.shape) == expected["index_shape"]
    digest = hashlib.sha256(bounds.numpy().astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == expected["index_sha256"]

    lowered = mask.lowered()
    assert exact_visible_pairs(lowered, mask.seqlen_q, mask.block_mask).sum() == expected["visible"]
    keys = visible_keys_per_row(lowered, mask.seqlen_q, mask.block_mask)
    assert (keys == 0).sum() == expected["fully_masked_rows"]

    # The recorded counts leave empty intervals as they are stored.
    stored = lower(bounds, mask.causal, mask.seqlen_q, mask.seqlen_k, canonical=False)
    tiles = tile_counts(stored, mask.seqlen_q, mask.block_mask)
    assert sum(tiles) == expected["tiles128"]["total"]
    assert tiles.full + tiles.partial == expected["tiles128"]["not_skipped_minmax"]
    assert tiles.partial == expected["tiles128"]["partial_minmax"]

    better = tile_counts(lowered, mask.seqlen_q, mask.block_mask)
    assert better.skip == tiles.skip
    assert tiles.partial - better.partial == (case["id"] == "causal_blockwise_icl")

    if bounds.numel() < 2**15:
        dense = dense_from_bounds(bounds, mask.causal, case["Sq"], case["Sk"])
        if mask.block_mask is not None:
            dense = dense_with_block_mask(dense, mask.block_mask)
        assert np.array_equal(mask.to_dense().numpy(), dense)
