# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Bounds of the mask families for the acceptance cases, written with NumPy from their definitions.

Independent of ``flashmask.masks``, whose builders have their own tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tests.flashmask.oracle import FLOATS, Problem, make_problem

CASES = json.loads((Path(__file__).parent / "data" / "acceptance_cases.json").read_text())


def spans(lengths):
    """First row and one past the last row of the segment of each position."""
    ends = np.repeat(np.cumsum(lengths), lengths)
    return ends - np.repeat(lengths, lengths), ends


def full(S, rng):
    return False, [np.full(S, S), np.zeros(S)]


def causal(S, rng):
    return True, [np.full(S, S)]


def sliding_window_causal(S, rng, window):
    return True, [np.minimum(np.arange(S) + window, S)]


def causal_document(S, rng, lens):
    return True, [spans(lens)[1]]


def document(S, rng, lens):
    start, end = spans(lens)
    return False, [end, start]


def shared_question(S, rng, docs):
    lts, at = [], 0
    for parts in docs:
        at_end = at + sum(parts)
        lts += [at_end] * parts[0]
        at += parts[0]
        for answer in parts[1:]:
            at += answer
            lts += [at] * answer
    return True, [lts + [len(lts)] * (S - len(lts))]


def global_sliding_window(S, rng, first, left, right):
    j = np.arange(S)
    upper = np.maximum(j - right, 0)
    lts, uts = np.minimum(j + left + 1, S), np.where(upper <= first, 0, first)
    upper = np.where(upper <= first, 0, upper)
    inside = j < first
    return False, [np.where(inside, S, lts), np.full(S, S), uts * ~inside, upper * ~inside]


def causal_blockwise(S, rng, lens):
    end, last = spans(lens)[1], S - lens[-1]
    in_last = np.arange(S) >= last
    return True, [np.where(in_last, S, end), np.where(in_last, S, last)]


def prefix_lm_causal(S, rng, prefix):
    j = np.arange(S)
    return False, [np.full(S, S), np.where(j < prefix, 0, j)]


def prefix_lm_document(S, rng, docs):
    start, end = spans([length for _, length in docs])
    prefix = np.concatenate([np.full(length, prefix) for prefix, length in docs])
    j = np.arange(S)
    return False, [end, np.where(j - start < prefix, start, j)]


def qk_sparse(S, rng, spans):
    lts, lte = np.full(S, S), np.full(S, S)
    for start, length in spans:
        lts[start : start + length] = np.arange(start, start + length)
        lte[start : start + length] = start + length
    return True, [lts, lte]


def hash_sparse(S, rng, buckets, seed):
    rng = np.random.default_rng(seed)
    hash_q, hash_k = rng.integers(0, buckets, S), rng.integers(0, buckets, S)
    order_q, order_k = np.argsort(hash_q, kind="stable"), np.argsort(hash_k, kind="stable")
    sorted_q = hash_q[order_q]
    lts, ute = [], []
    for column in range(S):
        bucket = hash_k[order_k[column]]
        first, last = np.searchsorted(sorted_q, [bucket, bucket + 1])
        lts.append(last)
        ute.append(first + np.searchsorted(order_q[first:last], order_k[column]))
    return False, [lts, ute]


def random_eviction(S, rng, start_row, seed):
    order, lts = list(rng.permutation(S)), np.full(S, S)
    for row in range(start_row, S):
        column = next(c for c in order if c < row)
        order.remove(column)
        lts[column] = row
    return True, [lts]


def block_causal(S, rng, frame):
    return False, [np.full(S, S), np.arange(S) // frame * frame]


def sink_window_causal(S, rng, sink, window):
    j = np.arange(S)
    return True, [np.where(j < sink, S, np.minimum(j + window, S))]


def doc_window_causal(S, rng, lens, window):
    return True, [np.minimum(spans(lens)[1], np.arange(S) + window)]


def tree_dfs(S, rng, seed):
    rng = np.random.default_rng(seed)
    parents, stack = [-1], [0]
    while len(parents) < S:
        if rng.integers(0, 3) == 0 and len(stack) > 1:
            stack.pop()
        else:
            parents.append(stack[-1])
            stack.append(len(parents) - 1)
    end = np.arange(1, S + 1)
    for node in range(S - 1, 0, -1):
        end[parents[node]] = max(end[parents[node]], end[node])
    return True, [end]


def left_padding(S, rng, pad):
    return True, [np.where(np.arange(S) < pad, 0, S)]


def all_masked(S, rng):
    return True, [np.zeros(S)]


SQUARE: dict[str, Callable] = {
    f.__name__: f
    for f in (
        full,
        causal,
        sliding_window_causal,
        causal_document,
        document,
        shared_question,
        global_sliding_window,
        causal_blockwise,
        prefix_lm_causal,
        prefix_lm_document,
        qk_sparse,
        hash_sparse,
        random_eviction,
        block_causal,
        sink_window_causal,
        doc_window_causal,
        tree_dfs,
        left_padding,
        all_masked,
    )
}


def one_head(case, params, rng):
    Sq, Sk, family = case["Sq"], case["Sk"], case["family"]
    if family == "random_intervals":
        params = {"lo": 0, "hi_extra": 0, **params}
        shape = (Sk, params["bounds"])
        drawn = rng.integers(params["lo"], Sq + 1 + params["hi_extra"], shape)
        return params["causal"], list(drawn.T)
    if family == "lt_above_ut":
        drawn = np.array(params["base"]) + rng.integers(0, params["jitter"], (Sk, 4))
        return False, list(np.clip(drawn, 0, Sq).T)
    if family == "causal":
        return True, [np.full(Sk, Sq)]
    if family == "empty_shape":
        return False, [np.full(Sk, Sq), np.zeros(Sk)]
    return SQUARE[family](Sk, rng, **params)


def mask_of(case) -> tuple[torch.Tensor | None, bool]:
    """Bounds ``[B, heads, Sk, C]`` int32 of a case and its causal flag."""
    if case["family"] == "none":
        return None, case["causal"]
    batch, is_causal, count = [], False, 2
    for b in range(case["B"]):
        heads = []
        for h in range(case["heads"]):
            params = case["per_batch"][b] if "per_batch" in case else case.get("params", {})
            rng = np.random.default_rng(params.get("seed", 0) + 1009 * b + h)
            is_causal, columns = one_head(case, params, rng)
            count = len(columns)
            heads.append(np.stack(columns, -1))
        batch.append(np.stack(heads))
    shape = (case["B"], case["heads"], case["Sk"], count)
    bounds = np.array(batch, dtype=np.int32).reshape(shape)
    return torch.from_numpy(bounds), is_causal


def block_mask_of(case) -> torch.Tensor | None:
    if "block_mask_seed" not in case:
        return None
    shape = (-(-case["Sq"] // 128), -(-case["Sk"] // 128))
    drawn = [
        [
            np.random.default_rng(case["block_mask_seed"] + 1009 * b + h).integers(0, 2, shape)
            for h in range(case["heads"])
        ]
        for b in range(case["B"])
    ]
    return torch.from_numpy(np.array(drawn, dtype=np.int32))


def problem_of(case) -> Problem:
    bounds, is_causal = mask_of(case)
    sizes = [case[name] for name in ("B", "Sq", "Sk", "Hq", "Hk", "D", "Dv")]
    return make_problem(
        *sizes,
        FLOATS[case["dtype"]],
        seed=case["data_seed"],
        input_scale=case.get("input_scale", 1.0),
        bounds=bounds,
        causal=is_causal,
        block_mask=block_mask_of(case),
        softmax_scale=case.get("softmax_scale"),
    )
