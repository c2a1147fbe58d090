# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs the package on a problem and compares with the oracle."""

from __future__ import annotations

import torch
from torch import Tensor

from flashmask import flashmask_attention
from tests.flashmask.oracle import Problem, Result, assert_close, dense


def attend(problem: Problem, backend: str, **changes: object) -> Result:
    """Forward and backward through the public function."""
    inputs = [t.detach().requires_grad_() for t in (problem.query, problem.key, problem.value)]
    arguments = {
        "causal": problem.causal,
        "block_mask": problem.block_mask,
        "softmax_scale": problem.softmax_scale,
        "backend": backend,
        **changes,
    }
    out, lse = flashmask_attention(*inputs, problem.bounds, return_softmax_lse=True, **arguments)
    outputs: list[Tensor] = [out]
    grads = [problem.grad_out]
    if problem.grad_lse is not None:
        outputs.append(lse)
        grads.append(problem.grad_lse)
    return Result(out.detach(), lse.detach(), torch.autograd.grad(outputs, inputs, grads))


def check(problem: Problem, backend: str, **changes: object) -> Result:
    """Compares everything with the oracle and returns what the package gave."""
    dtype = problem.query.dtype
    exact, naive = dense(problem, torch.float64), dense(problem, dtype)
    ours = attend(problem, backend, **changes)
    assert_close(ours, exact, naive, dtype)
    assert ours.out.is_contiguous()
    assert ours.lse.is_contiguous()
    assert ours.lse.dtype == torch.float32
    return ours


def same(a: Result, b: Result) -> bool:
    """Bitwise equality of everything (results here hold no NaN)."""
    return all(
        torch.equal(x, y)
        for x, y in zip((a.out, a.lse, *a.grads), (b.out, b.lse, *b.grads), strict=True)
    )
