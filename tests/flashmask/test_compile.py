# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch.compile: one graph, the same results, and nothing compiled again without need."""

import contextlib

import pytest
import torch
import torch._dynamo as dynamo
from torch._dynamo.testing import CompileCounterWithBackend

import flashmask
from flashmask import FlashMask, flashmask_attention


@pytest.fixture(autouse=True)
def fresh():
    dynamo.reset()
    yield
    dynamo.reset()


def tensors(S, dtype=torch.float32, grad=True):
    return [torch.randn(2, S, heads, 16).to(dtype).requires_grad_(grad) for heads in (4, 2, 2)]


def bounds_for(S, count=1):
    return torch.randint(0, S + 1, (2, 1, S, count), dtype=torch.int32)


def results(function, inputs, *rest):
    out, lse = function(*inputs, *rest)
    loss = (out.float() ** 2).sum() + lse.masked_fill(lse.isinf(), 0).sum()
    return [out, lse, *torch.autograd.grad(loss, inputs)]


def assert_same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("compiler", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_one_graph_and_the_same_results(backend, compiler, dynamic):
    def attend(q, k, v, bounds):
        return flashmask_attention(
            q * 2, k, v, bounds, causal=True, return_softmax_lse=True, backend=backend
        )

    compiled = torch.compile(attend, fullgraph=True, backend=compiler, dynamic=dynamic)
    inputs, bounds = tensors(70), bounds_for(70)
    assert_same(results(compiled, inputs, bounds), results(attend, inputs, bounds))


def test_lengths_vary_without_compiling_again(backend):
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def attend(q, k, v, bounds):
        return flashmask_attention(
            q, k, v, bounds, causal=True, return_softmax_lse=True, backend=backend
        )

    for S in (70, 131, 257, 40):
        inputs, bounds = tensors(S), bounds_for(S)
        for tensor, dim in zip((*inputs, bounds), (1, 1, 1, 2), strict=True):
            dynamo.mark_dynamic(tensor, dim)
        expected = results(attend._torchdynamo_orig_callable, inputs, bounds)
        assert_same(results(attend, inputs, bounds), expected)
    assert counter.frame_count == 1


def test_new_mask_values_compile_nothing(backend):
    counter = CompileCounterWithBackend("eager")

    @torch.compile(fullgraph=True, backend=counter)
    def attend(q, k, v, mask):
        return flashmask_attention(q, k, v, mask, backend=backend)

    inputs = tensors(140, grad=False)
    for seed in range(4):
        bounds = torch.full((2, 1, 140, 1), 40 * seed, dtype=torch.int32)
        mask = FlashMask(bounds, causal=True).prepared()
        assert torch.equal(
            attend(*inputs, mask), flashmask_attention(*inputs, mask, backend=backend)
        )
    assert counter.frame_count == 1


def test_mask_is_made_inside_of_the_graph(backend):
    """Bounds from documents, a window and the plan, all in one compiled function."""

    def attend(q, k, v, ends):
        bounds = ends[:, None, :, None].to(torch.int32)
        first = flashmask_attention(q, k, v, bounds, causal=True, backend=backend)
        second = flashmask_attention(q, k, v, window_size=(9, 0), causal=True, backend=backend)
        return first + second

    inputs = tensors(70, grad=False)
    ends = torch.tensor([30] * 30 + [70] * 40).expand(2, 70)
    for dynamic in (None, True):
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        assert torch.equal(compiled(*inputs, ends), attend(*inputs, ends))


def test_plan_is_made_inside_of_the_graph(cpu_kernels):
    def attend(q, k, v, bounds):
        mask = FlashMask(bounds, causal=True).prepared()
        return flashmask_attention(q, k, v, mask) + flashmask_attention(q, k, v, mask)

    inputs, bounds = tensors(140, grad=False), bounds_for(140)
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*inputs, bounds), attend(*inputs, bounds))


def test_block_mask_and_options(backend):
    def attend(q, k, v, bounds, blocks):
        return flashmask_attention(
            q, k, v, bounds, block_mask=blocks, softmax_scale=0.2, backend=backend
        )

    inputs, bounds = tensors(140, torch.bfloat16, grad=False), bounds_for(140, 4)
    blocks = torch.randint(0, 2, (1, 1, 2, 2), dtype=torch.int32)
    compiled = torch.compile(attend, fullgraph=True)
    assert torch.equal(compiled(*inputs, bounds, blocks), attend(*inputs, bounds, blocks))


def test_in_a_module_with_autocast(backend):
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = torch.nn.Linear(32, 3 * 32)

        def forward(self, x, bounds):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 16).unbind(2)
            out = flashmask_attention(q, k, v, bounds, causal=True, backend=backend)
            return out.flatten(2)

    layer, x, bounds = Layer(), torch.randn(2, 60, 32), bounds_for(60)
    compiled = torch.compile(layer, fullgraph=True)
    grads = []
    for module in (layer, compiled):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = module(x, bounds)
        assert out.dtype == torch.bfloat16
        out.float().pow(2).sum().backward()
        grads.append(layer.qkv.weight.grad.clone())
    torch.testing.assert_close(*grads, atol=0.05, rtol=0.05)


def test_first_use_of_the_public_name_may_be_inside(backend):
    def attend(q, k, v):
        return flashmask.flashmask_attention(q, k, v, causal=True, backend=backend)

    inputs = tensors(30, grad=False)
    vars(flashmask).pop("flashmask_attention", None)
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*inputs), attend(*inputs))


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # torch looks at its own stand-ins
def test_compiled_autograd(backend):
    from torch._dynamo import compiled_autograd

    inputs, bounds = tensors(40), bounds_for(40)

    def gradients(context):
        out = flashmask_attention(*inputs, bounds, causal=True, backend=backend)
        loss = out.pow(2).sum()
        with context:
            loss.backward()
        grads = [t.grad for t in inputs]
        for tensor in inputs:
            tensor.grad = None
        return grads

    compiler = torch.compile(backend="aot_eager", fullgraph=True)
    assert_same(gradients(compiled_autograd._enable(compiler)), gradients(contextlib.nullcontext()))
