# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Any strides are accepted and give the same bits as contiguous tensors."""

import pytest
import torch

from flashmask import flashmask_attention
from tests.flashmask.oracle import make_problem
from tests.flashmask.run import check, same


def bshd_contiguous(t):
    return t.clone()


def bhsd_transposed_view(t):
    return t.transpose(1, 2).contiguous().transpose(1, 2)


def qkv_packed_slice(t):
    packed = torch.full((*t.shape[:2], 3, *t.shape[2:]), float("nan"), dtype=t.dtype)
    packed[:, :, 1] = t
    return packed[:, :, 1]


def heads_packed_slice(t):
    packed = torch.full((*t.shape[:2], t.shape[2] + 3, t.shape[3]), float("nan"), dtype=t.dtype)
    packed[:, :, 1:-2] = t
    return packed[:, :, 1:-2]


def strided_batch_every_2nd(t):
    wide = torch.full((2 * t.shape[0], *t.shape[1:]), float("nan"), dtype=t.dtype)
    wide[::2] = t
    return wide[::2]


def strided_rows(t):
    wide = torch.full((t.shape[0], 3 * t.shape[1], *t.shape[2:]), float("nan"), dtype=t.dtype)
    wide[:, ::3] = t
    return wide[:, ::3]


def head_dim_stride_not_1(t):
    return t.transpose(1, 3).contiguous().transpose(1, 3)


def odd_offset(t):
    flat = torch.full((t.numel() + 1,), float("nan"), dtype=t.dtype)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


LAYOUTS = [
    bshd_contiguous,
    bhsd_transposed_view,
    qkv_packed_slice,
    heads_packed_slice,
    strided_batch_every_2nd,
    strided_rows,
    head_dim_stride_not_1,
    odd_offset,
]


READ_IN_PLACE = [layout for layout in LAYOUTS if layout is not head_dim_stride_not_1]


def document_problem(dtype):
    ends = torch.tensor([79] * 79 + [134] * 55 + [256] * 122, dtype=torch.int32)
    starts = torch.tensor([0] * 79 + [79] * 55 + [134] * 122, dtype=torch.int32)
    bounds = torch.stack([ends, starts], -1).expand(2, 1, 256, 2)
    return make_problem(2, 256, 256, 4, 2, 64, 64, dtype, seed=35, bounds=bounds)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_layout(backend, layout, dtype):
    problem = document_problem(dtype)
    plain = check(problem, backend)
    for name in ("query", "key", "value", "grad_out"):
        setattr(problem, name, layout(getattr(problem, name)))
    problem.bounds = problem.bounds.repeat_interleave(2, -1)[..., ::2]
    other = check(problem, backend)
    assert backend == "reference" or same(plain, other)


def ops_called(*inputs):
    """Names of the torch ops that forward and backward of the C++ kernels call."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    with torch.profiler.profile() as profile:
        out = flashmask_attention(*inputs, causal=True)
        torch.autograd.grad(out, inputs, torch.empty_like(out))
    return {event.key for event in profile.key_averages()}


COPIES = {"aten::copy_", "aten::clone"}


@pytest.mark.parametrize("layout", READ_IN_PLACE)
def test_nothing_is_copied(cpu_kernels, layout):
    q, k, v = (layout(torch.randn(2, 140, heads, 16)) for heads in (4, 2, 2))
    called = ops_called(q, k, v)
    assert {"flashmask::forward", "flashmask::backward"} <= called
    assert not called & COPIES
    expanded = [t[:, :, :1].expand(-1, -1, 4, -1) for t in (k, v)]
    assert not ops_called(q, *expanded) & COPIES


def test_only_a_tensor_with_a_strided_last_dimension_is_copied(cpu_kernels):
    q, k, v = (head_dim_stride_not_1(torch.randn(2, 140, heads, 16)) for heads in (4, 2, 2))
    assert ops_called(q, k, v) & COPIES


@pytest.mark.parametrize("sizes", [(2, 130, 1), (1, 130, 2), (1, 2, 1)], ids=str)
def test_offsets_beyond_32_bits(cpu_kernels, sizes):
    """Batch entries, heads or rows lie more than 2^31 elements apart; most is never touched."""
    batch, rows, heads = sizes
    apart = 2**31 + 11
    stride = (apart, apart if rows == 2 else 16, apart, 1)
    memory = torch.empty(apart + 8000, dtype=torch.bfloat16)
    problem = make_problem(batch, rows, rows, heads, heads, 16, 16, torch.bfloat16, causal=True)
    plain = check(problem, cpu_kernels)
    for start, name in ((0, "query"), (16 * rows, "key"), (32 * rows, "value")):
        tensor = getattr(problem, name)
        far = memory.as_strided(tensor.shape, stride, storage_offset=start)
        setattr(problem, name, far.copy_(tensor))
    assert same(plain, check(problem, cpu_kernels))


def test_expanded_tensors(backend):
    """One head for all, one row for all, a sum's gradient: strides of 0 everywhere."""
    problem = make_problem(2, 100, 100, 4, 1, 16, 16, torch.float32, causal=True)
    problem.key = problem.key.expand(-1, -1, 4, -1)
    problem.value = problem.value[:, :1].expand(-1, 100, 4, -1)
    problem.query = problem.query[:1].expand(2, -1, -1, -1)
    problem.grad_out = torch.ones(()).expand(problem.query.shape)
    problem.bounds = torch.full((1, 1, 1, 1), 60, dtype=torch.int32).expand(2, 4, 100, 1)
    check(problem, backend)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_mask_of_batch_one_serves_any_batch(backend, batch):
    problem = make_problem(batch, 140, 140, 2, 1, 8, 8, torch.float32, causal=True)
    bounds = torch.arange(1, 141, dtype=torch.int32).add(20).view(1, 1, 140, 1)
    blocks = torch.tensor([[[[1, 1], [0, 1]]]], dtype=torch.int32)
    problem.bounds = bounds.expand(batch, -1, -1, -1)
    problem.block_mask = blocks.expand(batch, -1, -1, -1)
    expected = check(problem, backend)
    qkv = (problem.query, problem.key, problem.value)
    got = flashmask_attention(*qkv, bounds, causal=True, block_mask=blocks, backend=backend)
    assert torch.equal(got, expected.out)


def test_transposed_bounds_and_blocks(backend):
    problem = make_problem(2, 200, 200, 4, 4, 8, 8, torch.float32)
    bounds = torch.randint(0, 201, (2, 4, 200, 2), dtype=torch.int32)
    blocks = torch.randint(0, 2, (2, 4, 2, 2), dtype=torch.int32)
    problem.bounds, problem.block_mask = bounds, blocks
    plain = check(problem, backend)
    problem.bounds = bounds.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    problem.block_mask = blocks.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0)
    assert same(plain, check(problem, backend))


def test_inference_tensors_and_parameters(backend):
    with torch.inference_mode():
        q = torch.randn(1, 20, 1, 8)
        out = flashmask_attention(q, q, q, causal=True, backend=backend)
    k = q.clone()
    again = flashmask_attention(torch.nn.Parameter(k), k, k, causal=True, backend=backend)
    assert torch.equal(out, again.detach())
