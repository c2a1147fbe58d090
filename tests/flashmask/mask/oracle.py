# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Independent NumPy definitions that the mask tests compare with, and random bounds."""

import json
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st

CASES = json.loads((Path(__file__).parents[1] / "data" / "mask_cases.json").read_text())


def dense_from_bounds(bounds, causal, seqlen_q, seqlen_k):
    """The definition of the bounds, one interval after the other. bool [B, H, Sq, Sk]."""
    r = np.arange(seqlen_q)[:, None]
    j = np.arange(seqlen_k)[None, :]
    if bounds is None:
        visible = np.ones((1, 1, seqlen_q, seqlen_k), dtype=bool)
    else:
        columns = [c[:, :, None, :] for c in np.moveaxis(np.asarray(bounds, np.int64), -1, 0)]
        match causal, len(columns):
            case True, 1:
                hidden = r >= columns[0]
            case True, 2:
                hidden = (r >= columns[0]) & (r < columns[1])
            case False, 2:
                hidden = (r >= columns[0]) | (r < columns[1])
            case False, 4:
                hidden = ((r >= columns[0]) & (r < columns[1])) | (
                    (r >= columns[2]) & (r < columns[3])
                )
        visible = ~hidden
    return visible & (r >= j - (seqlen_k - seqlen_q)) if causal else visible


def dense_with_block_mask(dense, block_mask):
    """AND with the blocks of 128 x 128 that are kept."""
    blocks = np.repeat(np.repeat(np.asarray(block_mask) != 0, 128, axis=2), 128, axis=3)
    return dense & blocks[:, :, : dense.shape[2], : dense.shape[3]]


def intervals_of(hidden_column):
    """Maximal runs of True, as (start, stop) pairs, by walking."""
    runs, start = [], None
    for row, hidden in enumerate([*hidden_column, False]):
        if hidden and start is None:
            start = row
        elif not hidden and start is not None:
            runs.append((start, row))
            start = None
    return runs


@st.composite
def random_bounds(draw, max_size=40, forms=((True, 1), (True, 2), (False, 2), (False, 4))):
    """(bounds, causal, Sq, Sk): sizes from 0 up, values out of range and reversed included."""
    causal, count = draw(st.sampled_from(forms))
    seqlen_q = draw(st.integers(0, max_size))
    seqlen_k = draw(st.integers(0, max_size))
    batch, heads = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 3)]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    margin = draw(st.sampled_from([0, 5]))
    bounds = torch.randint(
        -margin,
        seqlen_q + margin + 1,
        (batch, heads, seqlen_k, count),
        generator=generator,
        dtype=torch.int32,
    )
    # Smooth along the columns now and then, so that whole tiles become skippable.
    if draw(st.booleans()):
        bounds = bounds.sort(dim=2).values
    return bounds, causal, seqlen_q, seqlen_k
