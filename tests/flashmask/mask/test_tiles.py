# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tile classes and counts against the dense mask."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashmask import masks
from flashmask.mask.counts import exact_visible_pairs, visible_keys_per_row
from flashmask.mask.lowering import lower
from flashmask.mask.tiles import FULL, PARTIAL, SKIP, column_blocks, tile_classes, tile_counts
from tests.flashmask.mask.oracle import dense_from_bounds, dense_with_block_mask, random_bounds

tile_sizes = st.sampled_from([(4, 4), (8, 3), (1, 1), (5, 16), (128, 128)])


@given(random_bounds(), tile_sizes)
def test_classes_never_contradict_the_mask(case, tile):
    dense = dense_from_bounds(*case)
    classes = tile_classes(lower(*case), case[2], tile_rows=tile[0], tile_columns=tile[1])
    rows, columns = classes.shape[2:]
    assert (rows, columns) == (-(-case[2] // tile[0]), -(-case[3] // tile[1]))
    for m in range(rows):
        for n in range(columns):
            part = dense[:, :, m * tile[0] : (m + 1) * tile[0], n * tile[1] : (n + 1) * tile[1]]
            assert not part[(classes[:, :, m, n] == SKIP).numpy()].any()
            assert part[(classes[:, :, m, n] == FULL).numpy()].all()
            single = part.shape[2:] == (1, 1)
            assert not single or (classes[:, :, m, n] != PARTIAL).all()


@given(random_bounds(), tile_sizes)
def test_counts_do_not_depend_on_the_chunks(case, tile):
    lowered = lower(*case)
    sizes = {"tile_rows": tile[0], "tile_columns": tile[1]}
    classes = tile_classes(lowered, case[2], **sizes)
    expected = tuple(int((classes == c).sum()) for c in (SKIP, FULL, PARTIAL))
    assert tile_counts(lowered, case[2], **sizes) == expected
    assert tile_counts(lowered, case[2], max_elements=1, **sizes) == expected


@given(random_bounds())
def test_visible_pairs_and_keys_per_row_are_exact(case):
    dense = torch.from_numpy(dense_from_bounds(*case))
    lowered = lower(*case)
    assert torch.equal(exact_visible_pairs(lowered, case[2]), dense.sum((2, 3)))
    assert torch.equal(visible_keys_per_row(lowered, case[2]), dense.sum(3))


@settings(max_examples=40)
@given(
    st.integers(0, 2**31),
    st.sampled_from([(300, 200), (1, 129), (256, 256), (0, 5), (130, 0)]),
    st.sampled_from([(128, 128), (64, 32), (48, 200), (256, 130)]),
    st.sampled_from([(1, 1, 1, 1), (2, 1, 1, 2), (1, 2, 2, 1), (2, 4, 2, 2)]),
)
def test_block_mask_is_part_of_everything(seed, sizes, tile, shapes):
    rng = np.random.default_rng(seed)
    rows, columns = sizes
    blocks = (-(-rows // 128), -(-columns // 128))
    block_mask = torch.tensor(rng.integers(0, 2, (*shapes[:2], *blocks)), dtype=torch.int32)
    bounds = torch.tensor(rng.integers(0, rows + 1, (*shapes[2:], columns, 1)), dtype=torch.int32)
    dense = dense_from_bounds(bounds, True, rows, columns)
    heads = max(shapes[1], shapes[3])
    dense = np.repeat(dense, heads // shapes[3], axis=1)
    dense = dense_with_block_mask(dense, block_mask.repeat_interleave(heads // shapes[1], 1))

    lowered = lower(bounds, True, rows, columns)
    pairs = exact_visible_pairs(lowered, rows, block_mask)
    keys = visible_keys_per_row(lowered, rows, block_mask)
    assert np.array_equal(np.broadcast_to(pairs, dense.shape[:2]), dense.sum((2, 3)))
    assert np.array_equal(np.broadcast_to(keys, dense.shape[:3]), dense.sum(3))

    classes = tile_classes(
        lowered, rows, block_mask, tile_rows=tile[0], tile_columns=tile[1]
    ).numpy()
    for m in range(classes.shape[2]):
        for n in range(classes.shape[3]):
            part = dense[:, :, m * tile[0] : (m + 1) * tile[0], n * tile[1] : (n + 1) * tile[1]]
            assert not part[classes[:, :, m, n] == SKIP].any()
            assert part[classes[:, :, m, n] == FULL].all()


def test_dropped_blocks_are_skipped():
    block_mask = torch.tensor([[1, 0], [0, 1]], dtype=torch.int32)[None, None]
    lowered = masks.full(256).lowered()
    assert tile_classes(lowered, 256, block_mask)[0, 0].tolist() == [[FULL, SKIP], [SKIP, FULL]]
    wide = tile_classes(lowered, 256, block_mask, tile_rows=256, tile_columns=64)
    assert wide[0, 0].tolist() == [[PARTIAL] * 4]


def test_last_block_of_columns_takes_no_part_beyond_its_end():
    blocks = column_blocks(masks.causal(130).lowered(), 128)
    assert blocks.minimum[0, 0].tolist() == [[130, 130], [130, 130], [0, 0], [0, 128]]
    assert blocks.maximum[0, 0].tolist() == [[130, 130], [130, 130], [0, 0], [127, 129]]


def test_causal_skips_above_the_diagonal_and_masks_on_it():
    classes = tile_classes(masks.causal(512).lowered(), 512)[0, 0]
    expected = torch.full((4, 4), FULL).tril() + torch.eye(4)
    assert torch.equal(classes, expected.to(torch.uint8))


def test_long_sequences_need_no_dense_matrix():
    size = 2**20
    lowered = masks.sliding_window(size, window=1000).lowered()
    assert int(exact_visible_pairs(lowered, size)) == size * 1000 - 1000 * 999 // 2
    assert int(visible_keys_per_row(lowered, size).sum()) == size * 1000 - 1000 * 999 // 2
