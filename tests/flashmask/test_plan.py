# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The compiled plan against its specification in flashmask/mask/{lowering,tiles}.py."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from flashmask import masks
from flashmask.mask.lowering import lower
from flashmask.mask.tiles import FULL, PARTIAL, SKIP, column_blocks, tile_classes
from flashmask.plan_shape import PLAN_HEADER, PLAN_UNIT, TILE
from tests.flashmask.conftest import need_cpu_kernels

WORK = {SKIP: 0, PARTIAL: 6, FULL: 8}  # eighths of a full tile, as in csrc/plan.cpp


def parts_of(plan: Tensor, seqlen_q: int, seqlen_k: int) -> dict[str, Tensor]:
    """The pieces of one mask head of a plan by name."""
    columns, rows = -(-seqlen_k // TILE), -(-seqlen_q // TILE)
    padded = columns * TILE
    sizes = {
        "header": PLAN_HEADER,
        "bounds": 4 * padded,
        "tiles": 8 * columns,
        "units": 8 * (padded // PLAN_UNIT),
        "row_order": rows,
        "column_cost": columns,
    }
    return dict(zip(sizes, plan.split(list(sizes.values())), strict=True))


def check(
    bounds: Tensor | None, block_mask: Tensor | None, seqlen_q: int, seqlen_k: int, causal: bool
) -> None:
    """Everything in the plan of every mask head."""
    plan = torch.ops.flashmask.plan(bounds, block_mask, seqlen_q, seqlen_k, causal)
    lowered = lower(bounds, causal, seqlen_q, seqlen_k)
    classes = tile_classes(lowered, seqlen_q, block_mask).to(torch.int64)
    if seqlen_k % TILE:  # the columns past the last key need masking
        last = classes[..., -1]
        last[last == FULL] = PARTIAL
    work = torch.tensor([WORK[c] for c in sorted(WORK)])[classes]
    for b in range(plan.shape[0]):
        for h in range(plan.shape[1]):
            parts = parts_of(plan[b, h], seqlen_q, seqlen_k)
            ours = lowered[b % lowered.shape[0], h * lowered.shape[1] // plan.shape[1]]
            stored = parts["bounds"].view(4, -1)
            assert torch.equal(stored[:, :seqlen_k], ours)
            assert (stored[::2, seqlen_k:] == 0).all()
            assert (stored[1::2, seqlen_k:] == 2**31 - 1).all()
            for name, size in (("tiles", TILE), ("units", PLAN_UNIT)):
                blocks = column_blocks(stored[None, None], size)
                expected = torch.stack([blocks.minimum, blocks.maximum], 3)[0, 0].reshape(8, -1)
                assert torch.equal(parts[name].view(8, -1), expected)
            head = work[b % work.shape[0], h * work.shape[1] // plan.shape[1]]
            assert torch.equal(parts["column_cost"].long(), head.sum(0))
            expected = torch.argsort(head.sum(1), descending=True, stable=True)
            assert torch.equal(parts["row_order"].long(), expected)


def test_families(cpu_kernels):
    for mask in (
        masks.causal_document([317, 218, 489]),
        masks.global_sliding_window(1000, num_global=5, left=60, right=90),
        masks.random_eviction(700, first_row=300, heads=2, batch=2),
    ):
        check(mask.startend_row_indices, None, mask.seqlen_q, mask.seqlen_k, mask.causal)


def test_without_bounds(cpu_kernels):
    for sq, sk in ((300, 300), (500, 130), (130, 500), (128, 256)):
        for causal in (False, True):
            check(None, None, sq, sk, causal)


@st.composite
def problems(draw):
    seqlen_q, seqlen_k = draw(st.integers(1, 400)), draw(st.integers(1, 400))
    causal = draw(st.booleans())
    count = draw(st.sampled_from([1, 2] if causal else [2, 4]))
    heads, block_heads = draw(st.sampled_from([(1, 1), (2, 2), (1, 2), (2, 1)]))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    spread = draw(st.sampled_from([1, 40, 1000]))
    base = torch.randint(-50, seqlen_q + 50, (2, heads, 1, count), generator=generator)
    noise = torch.randint(0, spread, (2, heads, seqlen_k, count), generator=generator)
    bounds = (base + noise).to(torch.int32)
    shape = (2, block_heads, -(-seqlen_q // TILE), -(-seqlen_k // TILE))
    blocks = torch.randint(0, 2, shape, generator=generator, dtype=torch.int32)
    return bounds, draw(st.sampled_from([None, blocks])), seqlen_q, seqlen_k, causal


@settings(max_examples=150, deadline=None)
@given(problems())
def test_any_mask(problem):
    need_cpu_kernels()
    check(*problem)
