# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The operators of a mixture-of-experts layer, with experts one by one or in grouped products."""

from __future__ import annotations

from collections.abc import Sequence

from vmm.sim.generators.graph import Op
from vmm.sim.generators.layers import BF16, FP32, INT64, Shape, add, attention, linear, norm


def moe_layer(
    s: Shape,
    rows: int,
    experts: int,
    top: int,
    split: Sequence[int],
    grouped: bool,
    sync: bool = False,
) -> list[Op]:
    """Attention, router, dispatch, the local experts, combination; `x` to `y`.

    `experts` are those of all ranks, `split` the tokens that reach each local one. `s.ffn` is the
    width of an expert. With `sync` the host reads `split` before the dispatch.
    """
    size, sent = rows * s.hidden * BF16, rows * top * s.hidden * BF16
    arrived = max(sum(split), 1) * s.hidden * BF16
    body = _grouped(s, split) if grouped else _one_by_one(s, split)
    return [
        *attention(s, rows),
        norm("norm 2", "mid", "n2", rows, s.hidden),
        linear("router", "n2", "scores", rows, s.hidden, experts),
        Op("softmax", ("scores",), (("probabilities", rows * experts * FP32),)),
        Op(
            "top k",
            ("probabilities",),
            (("weights", rows * top * FP32), ("indices", rows * top * INT64)),
            saves=("probabilities", "indices"),
        ),
        Op("permute", ("n2", "indices"), (("sent", sent),), ("indices",), constant=("indices",)),
        Op("dispatch", ("sent",), (("arrived", arrived),), link=max(sent, arrived), sync=sync),
        *body,
        Op("combine", ("results",), (("returned", sent),), link=max(sent, arrived)),
        Op(
            "weighted sum",
            ("returned", "weights", "indices"),
            (("f", size),),
            saves=("returned", "weights", "indices"),
            constant=("indices",),
        ),
        add("mid", "f", "y", size),
    ]


def expert_weights(s: Shape, local: int, grouped: bool) -> list[int]:
    """Elements of the weights of the local experts."""
    pair = [2 * s.hidden * s.ffn, s.ffn * s.hidden]
    return [local * each for each in pair] if grouped else pair * local


def _grouped(s: Shape, split: Sequence[int]) -> list[Op]:
    rows, h, f = max(sum(split), 1), s.hidden, s.ffn
    pair = len(split) * 3 * h * f * BF16
    return [
        Op("sort", ("arrived",), (("sorted", rows * h * BF16),)),
        Op(
            "grouped gate up",
            ("sorted",),
            (("gate up", rows * 2 * f * BF16),),
            saves=("sorted",),
            weight=pair * 2 // 3,
            flops=4 * rows * h * f,
        ),
        Op("swiglu", ("gate up",), (("product", rows * f * BF16),), saves=("gate up",)),
        Op(
            "grouped down",
            ("product",),
            (("down", rows * h * BF16),),
            saves=("product",),
            weight=pair // 3,
            flops=2 * rows * h * f,
        ),
        Op("unsort", ("down",), (("results", rows * h * BF16),)),
    ]


def _one_by_one(s: Shape, split: Sequence[int]) -> list[Op]:
    h, f = s.hidden, s.ffn
    ops, parts = [], []
    for number, rows in enumerate(split):
        if not rows:
            continue  # as an implementation with a loop does
        chosen, wide, product, part = (
            f"{name} {number}" for name in ("chosen", "gate up", "product", "down")
        )
        ops += [
            Op("choose", ("arrived",), ((chosen, rows * h * BF16),)),
            linear("expert gate up", chosen, wide, rows, h, 2 * f),
            Op("swiglu", (wide,), ((product, rows * f * BF16),), saves=(wide,)),
            linear("expert down", product, part, rows, f, h),
        ]
        parts.append(part)
    size = max(sum(split), 1) * h * BF16
    return [*ops, Op("concatenate", tuple(parts) or ("arrived",), (("results", size),))]
