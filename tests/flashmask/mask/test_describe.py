# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The numbers and the text of mask.describe()."""

import pytest
import torch

from flashmask import FlashMask, masks


def test_numbers_are_those_of_the_mask():
    mask = masks.causal_document([[300, 212], [512, 0]])
    numbers = mask.describe(head_dim=64, num_heads=8)
    visible = int(mask.to_dense().sum())
    assert (numbers.visible, numbers.pairs, numbers.rows) == (visible, 2 * 512 * 512, 1024)
    assert numbers.density == visible / (2 * 512 * 512)
    assert sum(numbers.tiles) == 32
    assert numbers.forward_flops == 4 * 64 * visible * 8
    assert numbers.backward_flops == 10 * 64 * visible * 8
    assert numbers.mask_bytes == 2 * 512 * 4
    assert numbers.dense_bytes == 2 * 512 * 512
    assert numbers.empty_rows == 0
    assert masks.left_padding(64, 10).describe().empty_rows == 10


def test_value_head_dim_counts():
    numbers = masks.describe(masks.full(10), head_dim=4, value_head_dim=6)
    assert numbers.forward_flops == 2 * (4 + 6) * 100
    assert numbers.backward_flops == 2 * (3 * 4 + 2 * 6) * 100


def test_text():
    text = str(masks.causal(131072).describe(head_dim=128, num_heads=32))
    assert text.splitlines() == [
        "FlashMask(bounds=[1, 1, 131072, 1], causal=True, seqlen_q=131072, seqlen_k=131072, "
        "device='cpu')",
        "  visible pairs  8,590,000,128 of 17,179,869,184 (density 50.00%)",
        "  rows           131,072, of which 0 see no key",
        "  tiles 128x128  1,048,576: skip 523,776 (50.0%), full 523,776 (50.0%), "
        "partial 1,024 (0.1%)",
        "  work           forward 140.74 TFLOP, backward 351.85 TFLOP "
        "(32 query heads per mask head)",
        "  memory         512 KiB, dense 16 GiB",
    ]


def test_empty_sizes():
    for mask in (
        FlashMask(torch.zeros(0, 1, 4, 2, dtype=torch.int32)),
        FlashMask(torch.zeros(1, 1, 0, 2, dtype=torch.int32), seqlen_q=4),
        FlashMask(causal=True, seqlen_q=0, seqlen_k=4),
    ):
        assert mask.describe().density == 0
        assert "density 0.00%" in str(mask.describe())


def test_number_of_heads_must_fit():
    with pytest.raises(ValueError, match="multiple of 2, the number of mask heads, but is 3"):
        masks.random_eviction(8, first_row=2, heads=2).describe(num_heads=3)
