# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The picture of a mask."""

import sys

import numpy as np
import pytest
import torch

import flashmask
from flashmask import FlashMask, masks, plotting

SKIP, FULL, HIDDEN, VISIBLE = 0, 1, 2, 3


def image(figure):
    return np.asarray(figure.axes[0].images[0].get_array())


def test_missing_matplotlib_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'paddle-on-torch\[plot\]'"):
        flashmask.plot(masks.causal(8))


class TestPictures:
    @pytest.fixture(autouse=True)
    def matplotlib(self):
        pytest.importorskip("matplotlib")

    @pytest.mark.parametrize("suffix", ["png", "svg"])
    def test_it_is_saved_by_its_suffix(self, tmp_path, suffix):
        path = tmp_path / f"mask.{suffix}"
        flashmask.plot(masks.causal_document([100, 156]), path=path)
        start = path.read_bytes()[:200]
        assert start.startswith(b"\x89PNG") if suffix == "png" else b"<?xml" in start

    def test_pixels_show_tile_classes_and_visible_pairs(self):
        mask = masks.prefix_lm(40, 10)
        shown = image(flashmask.plot(mask, tile=8))
        visible = mask.to_dense()[0, 0].numpy()
        assert np.array_equal((shown == FULL) | (shown == VISIBLE), visible)
        for m in range(0, 40, 8):
            for n in range(0, 40, 8):
                tile = set(np.unique(shown[m : m + 8, n : n + 8]))
                assert tile in ({SKIP}, {FULL}) or tile <= {HIDDEN, VISIBLE}

    def test_batch_head_and_block_mask(self):
        bounds = masks.random_eviction(300, first_row=50, heads=2, batch=2).startend_row_indices
        blocks = torch.randint(0, 2, (2, 4, 3, 3), dtype=torch.int32)
        mask = FlashMask(bounds, causal=True, block_mask=blocks)
        shown = image(flashmask.plot(mask, batch=1, head=3, tile=64))
        visible = mask.to_dense()[1, 3].numpy()
        assert np.array_equal((shown == FULL) | (shown == VISIBLE), visible)
        with pytest.raises(IndexError, match="head must be below 4"):
            flashmask.plot(mask, head=4)
        with pytest.raises(IndexError, match="batch entry must be below 2"):
            flashmask.plot(mask, batch=2)

    def test_long_masks_are_sampled(self):
        mask = masks.sliding_window(2**20, window=2**18)
        figure = flashmask.plot(mask, max_pixels=64, tile=2**12)
        shown = image(figure)
        assert shown.shape == (64, 64)
        at = plotting._sample(2**20, 64)
        visible = (at[:, None] >= at) & (at[:, None] - at < 2**18)
        assert np.array_equal((shown == FULL) | (shown == VISIBLE), visible.numpy())

    def test_title_and_legend(self):
        figure = flashmask.plot(masks.causal(512), title="Causal")
        assert figure.axes[0].get_title() == (
            "Causal\n"
            "density 50.1%; tiles 128x128: skip 6 (37.5%), full 6 (37.5%), partial 4 (25.0%)"
        )
        labels = [text.get_text() for text in figure.legends[0].get_texts()]
        assert len(labels) == 4
        assert "512 queries x 512 keys" in flashmask.plot(masks.full(512)).axes[0].get_title()

    def test_nothing_to_draw(self):
        with pytest.raises(ValueError, match="seqlen_q=0 and seqlen_k=4"):
            flashmask.plot(FlashMask(seqlen_q=0, seqlen_k=4))
