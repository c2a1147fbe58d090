# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The ops keep what torch demands of a custom op, and what DESIGN.md says about them."""

import pytest
import torch
from torch.library import opcheck

from flashmask import ops
from flashmask.plan_shape import plan_length, plan_shape
from tests.flashmask.oracle import make_problem

PREFIX = {"reference": "reference_", "cpu": ""}


def op_named(backend, name):
    return getattr(torch.ops.flashmask, PREFIX[backend] + name).default


def mask_arguments(kind, Sq, Sk):
    """Bounds, block mask, plan, causal."""
    if kind == "none":
        return None, None, None, True
    bounds = torch.randint(0, Sq + 1, (2, 2, Sk, 2), dtype=torch.int32)
    if kind == "bounds":
        return bounds, None, None, False
    blocks = torch.randint(0, 2, (2, 1, -(-Sq // 128), -(-Sk // 128)), dtype=torch.int32)
    if kind == "blocks":
        return bounds, blocks, None, True
    return bounds, blocks, ops.plan(bounds, blocks, Sq, Sk, True), True


def forward_arguments(kind, dtype=torch.float32, strided=False):
    problem = make_problem(2, 140, 150, 4, 2, 16, 24, dtype)
    qkv = (problem.query, problem.key, problem.value)
    if strided:
        qkv = tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in qkv)
    return (*qkv, *mask_arguments(kind, 140, 150), 0.3)


def kinds(backend):
    return ["none", "plan" if backend == "cpu" else "blocks"]


@pytest.mark.parametrize(("dtype", "strided"), [(torch.float32, False), (torch.bfloat16, True)])
def test_opcheck_forward(backend, dtype, strided):
    op = op_named(backend, "forward")
    for kind in kinds(backend):
        query, key, value, *rest = forward_arguments(kind, dtype, strided)
        opcheck(op, (query, key, value, *rest))
        with_grad = [t.detach().requires_grad_() for t in (query, key, value)]
        opcheck(op, (*with_grad, *rest))
    opcheck(op, (with_grad[0], key, value, *rest))


@pytest.mark.parametrize("with_grad_lse", [False, True])
def test_opcheck_backward(backend, with_grad_lse):
    for kind in kinds(backend):
        args = forward_arguments(kind)
        out, lse = op_named(backend, "forward")(*args)
        grad_lse = torch.randn_like(lse) if with_grad_lse else None
        grads = (torch.randn_like(out), grad_lse)
        opcheck(op_named(backend, "backward"), (*grads, *args[:3], out, lse, *args[3:]))


@pytest.mark.parametrize("kind", ["none", "bounds", "blocks"])
def test_opcheck_plan(cpu_kernels, kind):
    bounds, blocks, _, causal = mask_arguments(kind, 140, 150)
    opcheck(ops.plan, (bounds, blocks, 140, 150, causal))
    opcheck(ops.plan, (None, blocks, 140, 150, causal))


def test_a_plan_without_tensors_is_made_on_the_cpu(cpu_kernels):
    plan = torch.ops.flashmask.plan(None, None, 200, 300, True)
    assert plan.shape == (1, 1, plan_length(200, 300))
    bounds = torch.full((1, 1, 300, 1), 200, dtype=torch.int32)
    assert torch.equal(plan, torch.ops.flashmask.plan(bounds, None, 200, 300, True))


@pytest.mark.parametrize(("Sq", "Sk"), [(1, 1), (0, 7), (7, 0), (128, 128), (129, 1000), (300, 5)])
def test_plan_shapes(cpu_kernels, Sq, Sk):
    bounds = torch.zeros(3, 4, Sk, 2, dtype=torch.int32)
    blocks = torch.ones(3, 2, -(-Sq // 128), -(-Sk // 128), dtype=torch.int32)
    for parts in ((bounds, None), (None, blocks), (bounds, blocks), (bounds[:1], blocks)):
        plan = torch.ops.flashmask.plan(*parts, Sq, Sk, False)
        assert list(plan.shape) == plan_shape(*parts, Sq, Sk)
        assert plan.dtype == torch.int32


def test_a_plan_changes_nothing_but_time(cpu_kernels):
    args = forward_arguments("plan")
    without = (*args[:5], None, *args[6:])
    planned, plain = ops.forward(*args), ops.forward(*without)
    assert all(torch.equal(a, b) for a, b in zip(planned, plain, strict=True))
    grads = torch.randn_like(plain[0]), None
    a = ops.backward(*grads, *args[:3], *plain, *args[3:])
    b = ops.backward(*grads, *args[:3], *plain, *without[3:])
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_one_plan_for_a_whole_batch(cpu_kernels):
    q, k, v, *_ = forward_arguments("none")
    plan = torch.ops.flashmask.plan(None, None, 140, 150, True)
    planned = ops.forward(q, k, v, None, None, plan, True, 0.3)
    plain = ops.forward(q, k, v, None, None, None, True, 0.3)
    assert all(torch.equal(a, b) for a, b in zip(planned, plain, strict=True))
    bounds = torch.randint(0, 141, (1, 1, 150, 1), dtype=torch.int32)
    plan = torch.ops.flashmask.plan(bounds, None, 140, 150, True)
    bounds = bounds.expand(2, -1, -1, -1)
    planned = ops.forward(q, k, v, bounds, None, plan, True, 0.3)
    plain = ops.forward(q, k, v, bounds, None, None, True, 0.3)
    assert all(torch.equal(a, b) for a, b in zip(planned, plain, strict=True))


def test_fakes_describe_the_results(backend):
    op = op_named(backend, "forward")
    for strided in (False, True):
        args = forward_arguments("blocks", torch.bfloat16, strided)
        real = op(*args)
        meta = op(*(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args))
        for a, b in zip(real, meta, strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_schemas_are_those_of_the_design():
    mask = "Tensor? startend_row_indices, Tensor? block_mask, Tensor? plan"
    assert str(ops.forward._schema) == (
        f"flashmask::forward(Tensor query, Tensor key, Tensor value, {mask}, bool causal, "
        "float softmax_scale) -> (Tensor out, Tensor lse)"
    )
    assert str(ops.backward._schema) == (
        "flashmask::backward(Tensor grad_out, Tensor? grad_lse, Tensor query, Tensor key, "
        f"Tensor value, Tensor out, Tensor lse, {mask}, bool causal, float softmax_scale) -> "
        "(Tensor grad_query, Tensor grad_key, Tensor grad_value)"
    )
    for op in (ops.forward, ops.backward, ops.plan, ops.reference_forward, ops.reference_backward):
        assert torch.Tag.pt2_compliant_tag in op.tags


@pytest.mark.parametrize("place", ["magic", "seqlen_q", "seqlen_k", "row_order"])
def test_a_plan_with_other_contents_is_refused(cpu_kernels, place):
    """The kernels use numbers of a plan as addresses, so they look at them first."""
    q, k, v, *_ = forward_arguments("none")
    plan = torch.ops.flashmask.plan(None, None, 140, 150, True)
    rows, columns = 2, 2
    row_order = plan.shape[-1] - columns - rows
    at, value = {
        "magic": (0, 0),
        "seqlen_q": (1, 139),
        "seqlen_k": (2, 149),
        "row_order": (row_order, 2),
    }[place]
    assert sorted(plan[0, 0, row_order : row_order + rows].tolist()) == [0, 1]
    plan[0, 0, at] = value
    out, lse = ops.forward(q, k, v, None, None, None, True, 0.3)
    with pytest.raises(RuntimeError, match="plan must be the result of flashmask::plan"):
        ops.forward(q, k, v, None, None, plan, True, 0.3)
    with pytest.raises(RuntimeError, match="plan must be the result of flashmask::plan"):
        ops.backward(out, None, q, k, v, out, lse, None, None, plan, True, 0.3)
