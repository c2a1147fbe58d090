# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What attention under a mask must give: a dense softmax in float64 with the gradients of autograd.

Shares nothing with the package: the mask comes from the definition of the bounds, element by
element. The same formulas in a lower precision say how exact a plain implementation would be, and
that decides how exact ours has to be.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# Absolute errors which are fine whatever the naive error is.
OUT_FLOOR = {torch.float32: 2e-5}
GRAD_FLOOR = {torch.float32: 1e-4}
LSE_LIMIT = {torch.float32: 1e-5, torch.bfloat16: 2e-3, torch.float16: 1e-3}

INF = float("inf")


@dataclasses.dataclass
class Problem:
    """The arguments of one call and the gradients which come back to it."""

    query: Tensor
    key: Tensor
    value: Tensor
    bounds: Tensor | None = None
    causal: bool = False
    block_mask: Tensor | None = None
    softmax_scale: float | None = None
    grad_out: Tensor | None = None
    grad_lse: Tensor | None = None


@dataclasses.dataclass
class Result:
    out: Tensor
    lse: Tensor
    grads: tuple[Tensor, Tensor, Tensor]


def make_problem(
    B: int,
    Sq: int,
    Sk: int,
    Hq: int,
    Hk: int,
    D: int,
    Dv: int,
    dtype: torch.dtype,
    *,
    seed: int = 0,
    input_scale: float = 1.0,
    lse_gradient: bool = False,
    **mask: object,
) -> Problem:
    """Random tensors in the order query, key, value, grad_out, drawn in float32 and then cast."""
    torch.manual_seed(seed)
    q = (torch.randn(B, Sq, Hq, D) * input_scale).to(dtype)
    k = (torch.randn(B, Sk, Hk, D) * input_scale).to(dtype)
    v = torch.randn(B, Sk, Hk, Dv).to(dtype)
    grad_out = torch.randn(B, Sq, Hq, Dv).to(dtype)
    grad_lse = torch.randn(B, Hq, Sq) if lse_gradient else None
    return Problem(q, k, v, grad_out=grad_out, grad_lse=grad_lse, **mask)  # type: ignore[arg-type]


def hidden_by_bounds(bounds: Tensor | None, causal: bool, Sq: int, Sk: int) -> Tensor:
    """Bool ``[B|1, Hm|1, Sq, Sk]`` straight from the definition; bounds are not clamped first."""
    row, column = torch.arange(Sq)[:, None], torch.arange(Sk)[None, :]
    hidden = torch.zeros(1, 1, Sq, Sk, dtype=torch.bool)
    if causal:
        hidden = hidden | (row < column - (Sk - Sq))
    if bounds is not None:
        x = [b[:, :, None, :] for b in bounds.long().unbind(-1)]
        if causal and len(x) == 1:
            hidden = hidden | (row >= x[0])
        elif causal and len(x) == 2:
            hidden = hidden | ((x[0] <= row) & (row < x[1]))
        elif not causal and len(x) == 2:
            hidden = hidden | (row >= x[0]) | (row < x[1])
        elif not causal and len(x) == 4:
            hidden = hidden | ((x[0] <= row) & (row < x[1])) | ((x[2] <= row) & (row < x[3]))
        else:
            raise AssertionError("no such form")
    return hidden


def visible(problem: Problem) -> Tensor:
    """Bool ``[B|1, Hq|1, Sq, Sk]``: bounds, causal triangle and block mask together."""
    Sq, Hq, Sk = problem.query.shape[1], problem.query.shape[2], problem.key.shape[1]

    def per_query_head(mask: Tensor) -> Tensor:
        return mask if mask.shape[1] == 1 else mask.repeat_interleave(Hq // mask.shape[1], dim=1)

    mask = ~per_query_head(hidden_by_bounds(problem.bounds, problem.causal, Sq, Sk))
    if problem.block_mask is not None:
        kept = problem.block_mask.repeat_interleave(128, 2).repeat_interleave(128, 3) != 0
        mask = mask & per_query_head(kept[:, :, :Sq, :Sk])
    return mask


def dense(problem: Problem, dtype: torch.dtype) -> Result:
    """Masked softmax attention with all scores at once, in one dtype, and autograd's gradients."""
    inputs = [
        t.detach().to(dtype).requires_grad_() for t in (problem.query, problem.key, problem.value)
    ]
    q, k, v = (t.transpose(1, 2) for t in inputs)
    group = q.shape[1] // max(k.shape[1], 1)
    k, v = (t.repeat_interleave(group, dim=1) for t in (k, v))
    scale = problem.softmax_scale
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    mask = visible(problem)
    scores = (q @ k.transpose(-1, -2)) * scale
    # The maximum only shifts; as a constant it keeps -inf - -inf out of the graph.
    top = scores.detach().masked_fill(~mask, -INF)
    top = top.amax(-1, keepdim=True) if top.shape[-1] else top.sum(-1, keepdim=True) - INF
    top = top.masked_fill(top == -INF, 0)
    # Scores of hidden pairs are replaced before exp, so that no gradient is 0 * inf.
    weights = (scores.masked_fill(~mask, 0) - top).clamp(max=0).exp() * mask
    total = weights.sum(-1, keepdim=True)
    blind = total == 0
    safe = total.masked_fill(blind, 1)
    out = ((weights / safe) @ v).transpose(1, 2)
    lse = (top + safe.log()).squeeze(-1).masked_fill(blind.squeeze(-1), -INF)
    loss = (out * problem.grad_out.to(dtype)).sum()
    if problem.grad_lse is not None:
        # The gradient of a row which sees nothing is multiplied away, -inf must not be.
        loss = loss + (lse.masked_fill(blind.squeeze(-1), 0) * problem.grad_lse.to(dtype)).sum()
    grads = torch.autograd.grad(loss, inputs)
    return Result(out.detach(), lse.detach(), grads)


def rounding(reference: Tensor, dtype: torch.dtype) -> float:
    """How much adding and subtracting 0.3 changes the result in its dtype."""
    x = reference.to(dtype)
    return largest(((x + 0.3) - 0.3) - x)


def largest(x: Tensor) -> float:
    return x.abs().max().item() if x.numel() else 0.0


def limit(
    exact: Tensor, naive: Tensor, dtype: torch.dtype, floor: dict[torch.dtype, float]
) -> float:
    """The largest error allowed: twice that of the naive way, plus twice the rounding."""
    error = 2 * largest(naive.double() - exact) + 2 * rounding(exact, dtype)
    return max(error, floor.get(dtype, 0.0))


def assert_close(ours: Result, exact: Result, naive: Result, dtype: torch.dtype) -> None:
    """Every output and gradient within its limit; rows which see nothing exactly as defined."""
    blind = exact.lse == -INF
    assert torch.equal(ours.lse == -INF, blind)
    assert not ours.out.transpose(1, 2)[blind].any()
    assert not ours.grads[0].transpose(1, 2)[blind].any()
    error = largest((ours.lse.double() - exact.lse)[~blind])
    assert error <= LSE_LIMIT[dtype] * max(1.0, largest(exact.lse[~blind]) / 16), f"lse: {error}"
    pairs = [("out", ours.out, exact.out, naive.out, OUT_FLOOR)]
    pairs += [
        (f"grad_{name}", a, b, c, GRAD_FLOOR)
        for name, a, b, c in zip("qkv", ours.grads, exact.grads, naive.grads, strict=True)
    ]
    for name, a, b, c, floor in pairs:
        assert a.dtype == dtype
        assert a.shape == b.shape
        assert not a.isnan().any(), f"{name} has NaN"
        error, allowed = largest(a.double() - b), limit(b, c, dtype, floor)
        if floor is GRAD_FLOOR:
            # Weights are made again from the stored lse: its rounding as float32 is theirs, too.
            allowed += torch.finfo(torch.float32).eps * largest(exact.lse[~blind]) * largest(b)
        assert error <= allowed, f"{name}: error {error:.3g}, allowed {allowed:.3g}"
