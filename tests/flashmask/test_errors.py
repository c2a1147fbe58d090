# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Bad input: one clear sentence each, the same from eager, compiled and direct calls."""

import dataclasses
import re
from collections.abc import Callable

import pytest
import torch
import torch._dynamo as dynamo

from flashmask import FlashMask, flashmask_attention, plan_shape, sentences
from tests.flashmask.oracle import make_problem


@dataclasses.dataclass
class Bad:
    """One broken rule.

    Attributes:
        error: exception of the public function.
        sentence: the whole message.
        change: changes the arguments, given as a dictionary, so that they break the rule.
        op: whether the op sees the bad value, too.
    """

    error: type[Exception]
    sentence: str
    change: Callable[[dict], None]
    op: bool = True


def arguments():
    problem = make_problem(2, 140, 150, 4, 2, 16, 24, torch.float32)
    return {
        "query": problem.query,
        "key": problem.key,
        "value": problem.value,
        "startend_row_indices": torch.full((2, 1, 150, 1), 140, dtype=torch.int32),
        "causal": True,
        "block_mask": torch.ones(2, 1, 2, 2, dtype=torch.int32),
    }


def put(**values):
    return lambda args: args.update(values)


def edit(**functions):
    def change(args):
        for name, function in functions.items():
            args[name] = function(args[name])

    return change


def heads_6_and_4(args):
    args.update(query=torch.randn(2, 140, 6, 16), key=torch.randn(2, 150, 4, 16))
    args.update(value=torch.randn(2, 150, 4, 24))


def int32(*shape):
    return torch.ones(shape, dtype=torch.int32)


QUERY = "[batch, seqlen_q, heads_q, head_dim]"

BAD = {
    "query_rank": Bad(
        ValueError,
        f"query must have 4 dimensions {QUERY}, but has shape [140, 4, 16]; reshape it.",
        edit(query=lambda t: t[0]),
    ),
    "query_without_dimensions": Bad(
        ValueError,
        f"query must have 4 dimensions {QUERY}, but has shape []; reshape it.",
        put(query=torch.tensor(1.0)),
    ),
    "key_rank": Bad(
        ValueError,
        "key must have 4 dimensions [batch, seqlen_k, heads_k, head_dim], but has shape "
        "[2, 150, 32]; reshape it.",
        edit(key=lambda t: t.flatten(2)),
    ),
    "query_dtype": Bad(
        TypeError,
        "query must be float32, bfloat16 or float16, but is int32; convert it with "
        ".to(torch.bfloat16).",
        edit(query=lambda t: t.int(), key=lambda t: t.int(), value=lambda t: t.int()),
    ),
    "mixed_dtypes": Bad(
        TypeError,
        "key must have the dtype of query, float16, but is float32; convert it with "
        ".to(query.dtype).",
        edit(query=lambda t: t.half()),
    ),
    "value_dtype": Bad(
        TypeError,
        "value must have the dtype of query, float32, but is bfloat16; convert it with "
        ".to(query.dtype).",
        edit(value=lambda t: t.bfloat16()),
    ),
    "key_batch": Bad(
        ValueError,
        "key must have the batch size of query, 2, but has shape [1, 150, 2, 16]; expand or slice "
        "its first dimension.",
        edit(key=lambda t: t[:1]),
    ),
    "head_dim": Bad(
        ValueError,
        "query must have a head dim between 1 and 256, but has shape [2, 140, 4, 257]; split it "
        "into more heads.",
        put(query=torch.randn(2, 140, 4, 257), key=torch.randn(2, 150, 2, 257)),
    ),
    "head_dim_0": Bad(
        ValueError,
        "query must have a head dim between 1 and 256, but has shape [2, 140, 4, 0]; split it "
        "into more heads.",
        put(query=torch.randn(2, 140, 4, 0), key=torch.randn(2, 150, 2, 0)),
    ),
    "value_head_dim": Bad(
        ValueError,
        "value must have a head dim between 1 and 256, but has shape [2, 150, 2, 300]; split it "
        "into more heads.",
        put(value=torch.randn(2, 150, 2, 300)),
    ),
    "key_head_dim": Bad(
        ValueError,
        "key must have the head dim of query, 16, but has shape [2, 150, 2, 15]; project both to "
        "one size.",
        edit(key=lambda t: t[..., :15]),
    ),
    "value_seqlen": Bad(
        ValueError,
        "value must have the sequence length of key, 150, but has shape [2, 149, 2, 24]; slice or "
        "pad its dimension 1.",
        edit(value=lambda t: t[:, :149]),
    ),
    "value_heads": Bad(
        ValueError,
        "value must have as many heads as key, 2, but has shape [2, 150, 1, 24]; expand or slice "
        "its dimension 2.",
        edit(value=lambda t: t[:, :, :1]),
    ),
    "head_ratio": Bad(
        ValueError,
        "query must have a multiple of the heads of key, 4, but has shape [2, 140, 6, 16]; repeat "
        "the heads of key and value until they divide.",
        heads_6_and_4,
    ),
    "device": Bad(
        ValueError,
        "value must be on the device of query, cpu, but is on meta; move it with "
        ".to(query.device).",
        edit(value=lambda t: t.to("meta")),
    ),
    "seqlen": Bad(
        ValueError,
        "query must have a sequence length of at most 2147483519, but has shape "
        "[2, 2147483648, 4, 16]; split it into several calls.",
        put(query=torch.zeros(()).expand(2, 2**31, 4, 16)),
    ),
    "bounds_device": Bad(
        ValueError,
        "startend_row_indices must be on the device of query, cpu, but is on meta; move it with "
        ".to(query.device).",
        edit(startend_row_indices=lambda t: t.to("meta")),
    ),
    "bounds_int64": Bad(
        TypeError,
        "startend_row_indices must be int32, but is int64; convert it with .to(torch.int32).",
        edit(startend_row_indices=lambda t: t.long()),
    ),
    "bounds_rank": Bad(
        ValueError,
        "startend_row_indices must have 4 dimensions [batch, heads, seqlen_k, bounds], but has "
        "shape [2, 1, 150]; reshape it.",
        edit(startend_row_indices=lambda t: t[..., 0]),
    ),
    "bounds_rank_without_batch": Bad(
        ValueError,
        "startend_row_indices must have 4 dimensions [batch, heads, seqlen_k, bounds], but has "
        "shape [1, 150, 1]; reshape it.",
        edit(startend_row_indices=lambda t: t[0]),
    ),
    "bounds_batch": Bad(
        ValueError,
        "startend_row_indices must have the batch size of query, 2, but has shape [3, 1, 150, 1]; "
        "expand or slice its first dimension.",
        put(startend_row_indices=int32(3, 1, 150, 1)),
    ),
    "bounds_heads": Bad(
        ValueError,
        "startend_row_indices must have 1, 2 (key) or 4 (query) heads, but has shape "
        "[2, 3, 150, 1]; expand or slice its dimension 1.",
        put(startend_row_indices=int32(2, 3, 150, 1)),
    ),
    "bounds_seqlen": Bad(
        ValueError,
        "startend_row_indices must have one column per key, 150, but has shape [2, 1, 140, 1]; "
        "build the mask for this number of keys.",
        put(startend_row_indices=int32(2, 1, 140, 1)),
    ),
    "three_bounds": Bad(
        ValueError,
        "startend_row_indices must have 1, 2 or 4 bounds in its last dimension, but has shape "
        "[2, 1, 150, 3]; see the table of masks in docs/flashmask.md.",
        put(startend_row_indices=int32(2, 1, 150, 3)),
    ),
    "causal_with_four": Bad(
        ValueError,
        "startend_row_indices must have 1 or 2 bounds when causal=True, but has shape "
        "[2, 1, 150, 4]; pass causal=False and put the triangle into the bounds.",
        put(startend_row_indices=int32(2, 1, 150, 4)),
    ),
    "one_without_causal": Bad(
        ValueError,
        "startend_row_indices must have 2 or 4 bounds when causal=False, but has shape "
        "[2, 1, 150, 1]; pass causal=True or add the second bound.",
        put(causal=False),
    ),
    "block_dtype": Bad(
        TypeError,
        "block_mask must be int32, but is bool; convert it with .to(torch.int32).",
        edit(block_mask=lambda t: t.bool()),
    ),
    "block_rank": Bad(
        ValueError,
        "block_mask must have 4 dimensions [batch, heads, rows, columns], but has shape [2, 2]; "
        "reshape it.",
        edit(block_mask=lambda t: t[0, 0]),
    ),
    "block_rank_without_batch": Bad(
        ValueError,
        "block_mask must have 4 dimensions [batch, heads, rows, columns], but has shape [1, 2, 2]; "
        "reshape it.",
        edit(block_mask=lambda t: t[0]),
    ),
    "block_heads": Bad(
        ValueError,
        "block_mask must have 1, 2 (key) or 4 (query) heads, but has shape [2, 3, 2, 2]; expand "
        "or slice its dimension 1.",
        put(block_mask=int32(2, 3, 2, 2)),
    ),
    "block_batch": Bad(
        ValueError,
        "block_mask must have the batch size of query, 2, but has shape [5, 1, 2, 2]; expand or "
        "slice its first dimension.",
        put(block_mask=int32(5, 1, 2, 2)),
    ),
    "block_shape": Bad(
        ValueError,
        "block_mask must have one value per 128 x 128 tile, [batch, heads, 2, 2], but has shape "
        "[2, 1, 3, 2]; build it for these sequence lengths.",
        put(block_mask=int32(2, 1, 3, 2)),
    ),
    "scale_nan": Bad(
        ValueError,
        "softmax_scale must be finite, but is nan; leave it out for 1 / sqrt(head_dim).",
        put(softmax_scale=float("nan")),
    ),
    "scale_inf": Bad(
        ValueError,
        "softmax_scale must be finite, but is -inf; leave it out for 1 / sqrt(head_dim).",
        put(softmax_scale=-float("inf")),
    ),
    "not_a_tensor": Bad(
        TypeError,
        "query must be a torch.Tensor, but is list; convert it with torch.as_tensor.",
        edit(query=lambda t: t.tolist()),
        op=False,
    ),
    "mask_type": Bad(
        TypeError,
        "startend_row_indices must be a torch.Tensor, a FlashMask or None, but is str; convert it "
        "with torch.as_tensor.",
        put(startend_row_indices="causal"),
        op=False,
    ),
    "block_type": Bad(
        TypeError,
        "block_mask must be a torch.Tensor, but is int; convert it with torch.as_tensor.",
        put(block_mask=1),
        op=False,
    ),
    "causal_type": Bad(
        TypeError,
        "causal must be True or False, but is int; pass a bool.",
        put(causal=1),
        op=False,
    ),
    "dropout": Bad(
        NotImplementedError,
        "dropout must be 0, but is 0.1; attention dropout is not supported, apply dropout to the "
        "output instead.",
        put(dropout=0.1),
        op=False,
    ),
    "scale_with_gradient": Bad(
        TypeError,
        "softmax_scale must be a float or None, but is Tensor; multiply query by the scale and "
        "pass softmax_scale=1.0 for one which is a tensor or needs a gradient.",
        put(softmax_scale=torch.ones((), requires_grad=True)),
        op=False,
    ),
    "window_and_mask": Bad(
        ValueError,
        "window_size must be None when startend_row_indices is given, but is 7; put the window "
        "into the bounds (flashmask.masks has builders).",
        put(window_size=7),
        op=False,
    ),
    "window_negative": Bad(
        ValueError,
        "window_size must not be negative, but is (3, -1); leave it out for no window.",
        put(startend_row_indices=None, window_size=(3, -1)),
        op=False,
    ),
    "window_type": Bad(
        TypeError,
        "window_size must be an int or a pair of ints, but is 2.5; pass keys to the left or "
        "(left, right).",
        put(startend_row_indices=None, window_size=2.5),
        op=False,
    ),
    "unknown_backend": Bad(
        ValueError,
        "backend must be None or one of cpu, reference, but is 'fast'; pass one of these.",
        put(backend="fast"),
        op=False,
    ),
}


def bad_arguments(bad, backend):
    args = {"backend": backend, **arguments()}
    bad.change(args)
    return args


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_eager(backend, name, requires_grad):
    bad = BAD[name]
    args = bad_arguments(bad, backend)
    query = args["query"]
    if requires_grad and isinstance(query, torch.Tensor) and query.is_floating_point():
        args["query"] = query.detach().requires_grad_()
    with pytest.raises(bad.error) as caught:
        flashmask_attention(**args)
    assert str(caught.value) == bad.sentence


@pytest.mark.parametrize("name", BAD)
def test_compiled(backend, name):
    bad = BAD[name]
    args = bad_arguments(bad, backend)
    dynamo.reset()
    compiled = torch.compile(flashmask_attention, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match=re.escape(bad.sentence)):
        compiled(**args)


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if bad.op])
def test_direct(backend, name):
    bad = BAD[name]
    args = bad_arguments(bad, backend)
    scale = args.get("softmax_scale", 0.25)
    op = getattr(torch.ops.flashmask, "forward" if backend == "cpu" else "reference_forward")
    tensors = [args[n] for n in ("query", "key", "value", "startend_row_indices", "block_mask")]
    with pytest.raises((RuntimeError, TypeError, ValueError), match=re.escape(bad.sentence)):
        op(*tensors, None, args["causal"], scale)


def test_public_function_wants_16_or_32_bits(cpu_kernels):
    q = torch.randn(1, 4, 1, 8, dtype=torch.float64)
    with pytest.raises(TypeError, match="but is float64"):
        flashmask_attention(q, q, q)


PLANS = {
    "plan_dtype": (
        lambda plan: plan.long(),
        "plan must be int32, but is int64; convert it with .to(torch.int32).",
    ),
    "plan_length": (
        lambda plan: plan[..., :-1].contiguous(),
        "plan must have shape [2, 1, {0}] for this mask and these sequence lengths, but has shape "
        "[1, 1, {1}]; make the FlashMask again.",
    ),
    "plan_heads": (
        lambda plan: plan.expand(1, 2, -1),
        "plan must have shape [2, 1, {0}] for this mask and these sequence lengths, but has shape "
        "[1, 2, {0}]; make the FlashMask again.",
    ),
    "plan_rank": (
        lambda plan: plan[0],
        "plan must have shape [2, 1, {0}] for this mask and these sequence lengths, but has shape "
        "[1, {0}]; make the FlashMask again.",
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_wrong_plans(backend, name):
    change, text = PLANS[name]
    length = plan_shape.plan_length(140, 150)
    plan = change(torch.zeros(1, 1, length, dtype=torch.int32))
    args = arguments()
    op = getattr(torch.ops.flashmask, "forward" if backend == "cpu" else "reference_forward")
    with pytest.raises(
        (RuntimeError, TypeError, ValueError), match=re.escape(text.format(length, length - 1))
    ):
        op(
            *(args[n] for n in ("query", "key", "value", "startend_row_indices")),
            args["block_mask"],
            plan,
            True,
            0.25,
        )


BACKWARD = {
    "grad_out_dtype": (
        "grad_out",
        lambda t: t.half(),
        "grad_out must have the dtype of query, float32, but is float16; convert it with "
        ".to(query.dtype).",
    ),
    "grad_out_shape": (
        "grad_out",
        lambda t: t[:, :9],
        "grad_out must have shape [2, 140, 4, 24], but has shape [2, 9, 4, 24]; pass the tensors "
        "which belong to this forward call.",
    ),
    "out_shape": (
        "out",
        lambda t: t[..., :3],
        "out must have shape [2, 140, 4, 24], but has shape [2, 140, 4, 3]; pass the tensors which "
        "belong to this forward call.",
    ),
    "lse_dtype": (
        "lse",
        lambda t: t.double(),
        "lse must be float32, but is float64; convert it with .to(torch.float32).",
    ),
    "lse_shape": (
        "lse",
        lambda t: t[0],
        "lse must have shape [2, 4, 140], but has shape [4, 140]; pass the tensors which belong "
        "to this forward call.",
    ),
    "grad_lse_shape": (
        "grad_lse",
        lambda t: t.transpose(1, 2),
        "grad_lse must have shape [2, 4, 140], but has shape [2, 140, 4]; pass the tensors which "
        "belong to this forward call.",
    ),
    "out_device": (
        "out",
        lambda t: t.to("meta"),
        "out must be on the device of query, cpu, but is on meta; move it with .to(query.device).",
    ),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_backward_op(backend, name):
    argument, change, text = BACKWARD[name]
    args = arguments()
    tensors = {
        "grad_out": torch.randn(2, 140, 4, 24),
        "grad_lse": torch.randn(2, 4, 140),
        **{n: args[n] for n in ("query", "key", "value")},
        "out": torch.randn(2, 140, 4, 24),
        "lse": torch.randn(2, 4, 140),
    }
    tensors[argument] = change(tensors[argument])
    op = getattr(torch.ops.flashmask, "backward" if backend == "cpu" else "reference_backward")
    with pytest.raises((RuntimeError, TypeError, ValueError), match=re.escape(text)):
        op(*tensors.values(), None, None, None, True, 0.25)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"seqlen_q": -1}, "seqlen_q must be between 0 and 2147483519, but is -1;"),
        ({"seqlen_k": 7}, "startend_row_indices must have one column per key, 7, but has shape"),
        ({"causal": False}, "startend_row_indices must have 2 or 4 bounds when causal=False"),
        ({"block_mask": int32(2, 1, 1, 1)}, "block_mask must have one value per 128 x 128 tile"),
        ({"block_mask": int32(3, 1, 2, 2)}, "block_mask must have a batch size of 1 or that of"),
        ({"block_mask": int32(2, 3, 2, 2)}, "block_mask must have heads which divide, or are"),
        ({"startend_row_indices": int32(2, 2, 150)}, "startend_row_indices must have 4 dimensions"),
    ],
)
def test_plan_op(cpu_kernels, change, text):
    args = {
        "startend_row_indices": int32(2, 2, 150, 1),
        "block_mask": None,
        "seqlen_q": 140,
        "seqlen_k": 150,
        "causal": True,
        **change,
    }
    for device in ("cpu", "meta"):
        moved = {n: a.to(device) if isinstance(a, torch.Tensor) else a for n, a in args.items()}
        with pytest.raises((RuntimeError, TypeError, ValueError), match=re.escape(text)):
            torch.ops.flashmask.plan(**moved)


def test_a_flash_mask_must_fit(backend):
    q, k = torch.randn(2, 140, 4, 16), torch.randn(2, 150, 2, 16)
    mask = FlashMask(int32(2, 1, 150, 1), causal=True, seqlen_q=140)
    flashmask_attention(q, k, k, mask, causal=True, backend=backend)  # saying it again is fine
    with pytest.raises(ValueError, match=r"match the sequence lengths of query and key, \[139, 15"):
        flashmask_attention(q[:, 1:], k, k, mask, backend=backend)
    with pytest.raises(ValueError, match="block_mask must be None when a FlashMask is given"):
        flashmask_attention(q, k, k, mask, block_mask=int32(2, 1, 2, 2), backend=backend)
    with pytest.raises(ValueError, match="window_size must be None"):
        flashmask_attention(q, k, k, mask, window_size=3, backend=backend)
    other = FlashMask(int32(2, 1, 150, 2), causal=False, seqlen_q=140)
    with pytest.raises(ValueError, match="causal must be left out with a FlashMask made with"):
        flashmask_attention(q, k, k, other, causal=True, backend=backend)


def test_a_stale_plan_is_noticed(cpu_kernels):
    q, bounds = torch.randn(1, 140, 1, 8), torch.full((1, 1, 140, 1), 140, dtype=torch.int32)
    mask = FlashMask(bounds, causal=True).prepared()
    flashmask_attention(q, q, q, mask)
    bounds.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        flashmask_attention(q, q, q, mask)


def test_errors_which_no_rule_explains_come_through(backend, monkeypatch):
    from flashmask import api

    def broken(*args):
        raise RuntimeError("out of memory")

    chosen = api._Implementation(broken, broken, broken, False)
    monkeypatch.setitem(api._chosen, (backend, "cpu"), chosen)
    q = torch.randn(1, 4, 1, 8)
    with pytest.raises(RuntimeError, match="out of memory"):
        flashmask_attention(q, q, q, backend=backend)


def test_every_sentence_is_a_sentence():
    table = {**sentences.OP_SENTENCES, **sentences.CALL_SENTENCES}
    for rule, (error, text) in table.items():
        assert issubclass(error, Exception), rule
        assert text.endswith("."), rule
        assert " must " in text, rule
        assert "; " in text, f"{rule} offers no fix"


def test_sparse_tensors(backend):
    q = torch.randn(1, 4, 1, 8)
    text = (
        "query must be a dense tensor, but has the layout sparse_coo; convert it with .to_dense()."
    )
    with pytest.raises(TypeError, match=re.escape(text)):
        flashmask_attention(q.to_sparse(), q, q, backend=backend)
