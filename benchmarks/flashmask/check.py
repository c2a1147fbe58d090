# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Correctness in the run that is timed: sampled rows and columns of one head against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from flashmask import FlashMask, flashmask_attention


class Check:
    """Compares the op with the definition of attention under `mask_mod`, in float64.

    A row of the output and of dq needs all keys; a column of dk and dv needs all rows, and with
    them the log-sum-exp of every row, which is taken from the op and is itself checked on the
    sampled rows.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        grad: Tensor,
        mask: FlashMask,
        mask_mod: Callable[[Any, Any, Any, Any], Any],
    ) -> None:
        inputs = [x.clone().requires_grad_() for x in (query, key, value)]
        out, lse = flashmask_attention(*inputs, mask, return_softmax_lse=True)
        grads = torch.autograd.grad(out, inputs, grad)
        head = query.shape[2] - 1
        self.q, self.k, self.v, self.do, self.out = (
            x[0, :, head].detach().double() for x in (query, key, value, grad, out)
        )
        self.dq, self.dk, self.dv = (x[0, :, head].double() for x in grads)
        self.lse = lse[0, head].detach().double()
        self.mask_mod = mask_mod
        self.scale = query.shape[3] ** -0.5

    def errors(self, quick: bool) -> dict[str, float]:
        """Largest absolute error of out, lse, dq, dk and dv on the samples."""
        seqlen = self.q.shape[0]
        sample = torch.linspace(0, seqlen - 1, 16 if quick else 64).long()
        everything = torch.arange(seqlen)

        seen = self.mask_mod(0, 0, sample[:, None], everything[None]).expand(len(sample), seqlen)
        scores = (self.q[sample] @ self.k.T * self.scale).masked_fill(~seen, float("-inf"))
        lse = scores.logsumexp(-1)
        blind = ~seen.any(-1)
        weights = torch.where(blind[:, None], 0.0, (scores - lse[:, None]).exp())
        out = weights @ self.v
        delta = (out * self.do[sample]).sum(-1, keepdim=True)
        dq = (weights * (self.do[sample] @ self.v.T - delta)) @ self.k * self.scale

        seen = self.mask_mod(0, 0, everything[:, None], sample[None]).expand(seqlen, len(sample))
        scores = (self.q @ self.k[sample].T * self.scale).masked_fill(~seen, float("-inf"))
        weights = torch.where(seen, (scores - self.lse[:, None]).exp(), 0.0)
        delta = (self.out * self.do).sum(-1, keepdim=True)
        dk = (weights * (self.do @ self.v[sample].T - delta)).T @ self.q * self.scale
        dv = weights.T @ self.do
        pairs = {
            "out": (self.out[sample], out),
            "lse": (self.lse[sample][~blind], lse[~blind]),
            "dq": (self.dq[sample], dq),
            "dk": (self.dk[sample], dk),
            "dv": (self.dv[sample], dv),
        }
        return {name: float((got - want).abs().max()) for name, (got, want) in pairs.items()}
