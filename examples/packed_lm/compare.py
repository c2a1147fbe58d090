# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Time FlashMask against the attentions of torch, in one process and on one mask.

Candidates take turns, so that a machine which slows down or speeds up meets all of them alike, and
the median of the rounds counts. Compilation and first calls are not timed; neither is making the
mask, which has a column of its own.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from packed_lm.attention import ATTEND, Mask, build_mask, mask_bytes
from packed_lm.data import Packed
from packed_lm.model import Shape, Transformer
from packed_lm.training import Trainer


@dataclasses.dataclass
class Row:
    """One attention; times in milliseconds, None where it cannot do that."""

    kind: str
    step: float | None = None  # forward, backward and update of the whole model
    both: float | None = None  # attention of one layer, forward and backward
    forward: float | None = None  # attention of one layer, forward only
    build: float | None = None  # making the mask
    bytes: int = 0  # of the mask


def compare(trainer: Trainer, packed: Packed, rounds: int) -> list[Row]:
    """Time training steps, attention and masks on one packed sequence.

    Args:
        trainer: a trainer with FlashMask attention, already compiled. Its weights stay as they are.
        packed: the sequence.
        rounds: how often each candidate has its turn.
    """
    rows = {kind: Row(kind) for kind in ATTEND}
    masks = {kind: build_mask(kind, packed.lengths) for kind in ATTEND}
    for kind, mask in masks.items():
        rows[kind].bytes = mask_bytes(mask)
    measures: dict[str, dict[str, Callable[[], Any]]] = {
        "build": {kind: lambda kind=kind: build_mask(kind, packed.lengths) for kind in ATTEND},
        **_attention(trainer.model.shape, masks, len(packed.tokens[0])),
        "step": _steps(trainer, packed, masks),
    }
    for field, candidates in measures.items():
        for kind, milliseconds in interleaved(candidates, rounds).items():
            setattr(rows[kind], field, milliseconds)
    return list(rows.values())


def interleaved(candidates: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return the median milliseconds of each candidate, after one call to warm up."""
    for candidate in candidates.values():
        candidate()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            begin = time.perf_counter()
            candidate()
            seconds[name].append(time.perf_counter() - begin)
    return {name: 1000 * statistics.median(times) for name, times in seconds.items()}


def _attention(
    shape: Shape, masks: dict[str, Mask], seq_len: int
) -> dict[str, dict[str, Callable[[], Any]]]:
    """Return what to time of the attention of one layer: both passes, and forward only."""
    query, grad = (torch.randn(1, seq_len, shape.heads, shape.head_dim) for _ in range(2))
    key, value = (torch.randn(1, seq_len, shape.kv_heads, shape.head_dim) for _ in range(2))
    query, key, value, grad = (x.bfloat16() for x in (query, key, value, grad))
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]

    # FlexAttention must be compiled; the others are one call or a few calls of ready-made kernels.
    attend = ATTEND | {"flex": torch.compile(ATTEND["flex"], fullgraph=True)}

    @torch.no_grad()
    def forward(kind: str) -> Tensor:
        return attend[kind](query, key, value, masks[kind])

    def both(kind: str) -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend[kind](*leaves, masks[kind]), leaves, grad)

    # What is fast but wrong is not worth timing.
    expected = forward("flashmask").float()
    for kind in attend:
        torch.testing.assert_close(forward(kind).float(), expected, atol=0.03, rtol=0.03)

    trainable = [kind for kind in ATTEND if kind != "flex"]  # which has no backward on CPU
    return {
        "forward": {kind: lambda kind=kind: forward(kind) for kind in ATTEND},
        "both": {kind: lambda kind=kind: both(kind) for kind in trainable},
    }


def _steps(
    trainer: Trainer, packed: Packed, masks: dict[str, Mask]
) -> dict[str, Callable[[], Any]]:
    """Return whole training steps, compiled alike, for the attentions that allow it."""
    peer = Transformer(trainer.model.shape, ATTEND["sdpa"])
    peer.load_state_dict(trainer.model.state_dict())
    trainers = {"flashmask": trainer, "sdpa": Trainer(peer, "sdpa", trainer.steps)}
    # At the end of the schedule the learning rate is 0: all work is done, no weight changes.
    return {
        kind: lambda kind=kind, one=one: one.step(packed, masks[kind], one.steps)
        for kind, one in trainers.items()
    }


def ratio(rows: Sequence[Row], kind: str, field: str) -> float | None:
    """Return how many times the time of FlashMask another attention takes."""
    by_kind = {row.kind: getattr(row, field) for row in rows}
    return None if by_kind[kind] is None else by_kind[kind] / by_kind["flashmask"]
