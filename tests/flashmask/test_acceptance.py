# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The acceptance cases: every mask family, forward and all gradients, against float64."""

import hashlib

import pytest
import torch

from flashmask import flashmask_attention
from tests.flashmask.case_masks import CASES, mask_of, problem_of
from tests.flashmask.oracle import Problem, dense, visible
from tests.flashmask.run import check

NORMAL = [case for case in CASES if not case.get("slow")]


def by_id(case):
    return case["id"]


@pytest.mark.parametrize("case", [c for c in NORMAL if "index_sha256" in c], ids=by_id)
def test_the_cases_are_the_intended_ones(case):
    problem = problem_of(case)
    assert hashlib.sha256(problem.bounds.numpy().tobytes()).hexdigest()[:16] == case["index_sha256"]
    # The counts are per mask head, so look at each mask head once.
    heads = 1 if problem.bounds is None else problem.bounds.shape[1]
    blocks = problem.block_mask
    one = torch.empty(case["B"], case["Sq"], heads, 1), torch.empty(case["B"], case["Sk"], heads, 1)
    mask = visible(Problem(*one, one[1], problem.bounds, problem.causal, blocks))
    assert mask.sum().item() == case["visible"]
    assert (~mask.any(-1)).sum().item() == case["fully_masked_rows"]


@pytest.mark.parametrize("case", NORMAL, ids=by_id)
def test_case(case, backend):
    check(problem_of(case), backend)


@pytest.mark.slow
def test_more_than_2_31_elements(cpu_kernels):
    (case,) = [case for case in CASES if case.get("slow")]
    bounds, causal = mask_of(case)
    dtype, seed = torch.bfloat16, torch.Generator().manual_seed(case["data_seed"])
    q, k, v = (
        torch.randn(1, case["Sk"], heads, case["D"], generator=seed).to(dtype)
        for heads in (case["Hq"], case["Hk"], case["Hk"])
    )
    out, lse = flashmask_attention(q, k, v, bounds, causal=causal, return_softmax_lse=True)
    window = case["params"]["window"]
    for row in torch.linspace(0, case["Sq"] - 1, 64).long().tolist():
        keys = slice(max(0, row - window + 1), row + 1)
        alone = Problem(
            q[:, row : row + 1], k[:, keys], v[:, keys], grad_out=torch.zeros_like(out[:, :1])
        )
        exact = dense(alone, torch.float64)
        torch.testing.assert_close(out[:, row : row + 1].double(), exact.out, atol=8e-3, rtol=0)
        torch.testing.assert_close(lse[..., row : row + 1].double(), exact.lse, atol=2e-3, rtol=0)
