# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch.func, vmap, autocast, activation checkpointing, saved-tensor hooks and DDP."""

import os
import socket

import pytest
import torch
from torch.func import grad, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

from flashmask import FlashMask, flashmask_attention, native


def qkv(*lead, S=40):
    return [torch.randn(*lead, 2, S, heads, 8) for heads in (4, 2, 2)]


def bounds_for(*lead, S=40):
    return torch.randint(0, S + 1, (*lead, 2, 1, S, 1), dtype=torch.int32)


def loss_of(backend):
    def loss(q, k, v, bounds):
        out, lse = flashmask_attention(
            q, k, v, bounds, causal=True, return_softmax_lse=True, backend=backend
        )
        return out.pow(2).sum() + lse.masked_fill(lse.isinf(), 0).sum()

    return loss


def eager_gradients(backend, inputs, bounds):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    return torch.autograd.grad(loss_of(backend)(*inputs, bounds), inputs)


def assert_all_equal(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_func_grad_and_vjp(backend):
    inputs, bounds = qkv(), bounds_for()
    expected = eager_gradients(backend, inputs, bounds)
    assert_all_equal(grad(loss_of(backend), argnums=(0, 1, 2))(*inputs, bounds), expected)
    _, pull = vjp(lambda *args: loss_of(backend)(*args, bounds), *inputs)
    assert_all_equal(pull(torch.tensor(1.0)), expected)


def test_vmap_over_everything(backend):
    inputs, bounds = qkv(3), bounds_for(3)
    blocks = torch.randint(0, 2, (3, 2, 1, 1, 1), dtype=torch.int32)

    def attend(q, k, v, bounds, blocks):
        return flashmask_attention(
            q,
            k,
            v,
            bounds,
            causal=True,
            block_mask=blocks,
            return_softmax_lse=True,
            backend=backend,
        )

    out, lse = vmap(attend)(*inputs, bounds, blocks)
    for i in range(3):
        one = attend(*(t[i] for t in (*inputs, bounds, blocks)))
        torch.testing.assert_close((out[i], lse[i]), one)


@pytest.mark.parametrize("mapped", ["q", "k", "v", "bounds", "qk"])
def test_vmap_over_some(backend, mapped):
    inputs, bounds = qkv(), bounds_for()
    dims = [None] * 4
    args = [*inputs, bounds]
    for i, name in enumerate(("q", "k", "v", "bounds")):
        if name == mapped or (mapped == "qk" and name in "qk"):
            dims[i] = i % 3  # not always the first dimension
            args[i] = torch.stack([args[i], args[i].roll(1, 1)], dim=dims[i])

    def attend(q, k, v, bounds):
        return flashmask_attention(q, k, v, bounds, causal=True, backend=backend)

    out = vmap(attend, in_dims=tuple(dims))(*args)
    for n in range(2):
        one = [a if d is None else a.select(d, n) for a, d in zip(args, dims, strict=True)]
        torch.testing.assert_close(out[n], attend(*one))


def test_vmap_of_grad_and_grad_of_vmap(backend):
    inputs, bounds = qkv(3), bounds_for(3)
    per_sample = vmap(grad(loss_of(backend), argnums=(0, 1, 2)))(*inputs, bounds)
    for i in range(3):
        expected = eager_gradients(backend, [t[i] for t in inputs], bounds[i])
        torch.testing.assert_close(tuple(g[i] for g in per_sample), expected)
    total = grad(lambda *args: vmap(loss_of(backend))(*args, bounds).sum(), argnums=(0, 1, 2))
    torch.testing.assert_close(total(*inputs), per_sample)


def test_nested_vmap_and_jacobian(backend):
    q, k, v = qkv(2, 3, S=6)

    def attend(q, k, v):
        return flashmask_attention(q, k, v, causal=True, backend=backend)

    out = vmap(vmap(attend))(q, k, v)
    torch.testing.assert_close(out[1, 2], attend(q[1, 2], k[1, 2], v[1, 2]))
    jacobian = jacrev(attend)(q[0, 0, :1, :3], k[0, 0, :1, :3], v[0, 0, :1, :3])
    assert jacobian.shape == (1, 3, 4, 8) * 2
    assert not jacobian[:, 0, :, :, :, 1:].any()


def test_vmap_of_plans_and_planned_masks(cpu_kernels):
    (q, k, v), bounds = qkv(3), bounds_for(3)

    def plan(bounds):
        return torch.ops.flashmask.plan(bounds, None, 40, 40, True)

    plans = vmap(plan)(bounds)
    assert torch.equal(plans[1], plan(bounds[1]))

    def attend(q, bounds, plan):
        mask = FlashMask(bounds, causal=True, plan=plan)
        return flashmask_attention(q, k[0], v[0], mask)

    expected = vmap(lambda q, b: flashmask_attention(q, k[0], v[0], b, causal=True))(q, bounds)
    torch.testing.assert_close(vmap(attend)(q, bounds, plans), expected)
    shared = vmap(attend, in_dims=(0, None, None))(q, bounds[0], plans[0])
    torch.testing.assert_close(shared[0], expected[0])


def test_what_has_no_formula_refuses(backend):
    (q, k, v), bounds = qkv(), bounds_for()

    def total(q):
        return flashmask_attention(q, k, v, bounds, causal=True, backend=backend).sum()

    with pytest.raises(NotImplementedError, match="forward-mode"):
        jvp(total, (q,), (q,))
    with pytest.raises(NotImplementedError, match="second derivatives"):
        grad(lambda q: grad(total)(q).sum())(q)
    q.requires_grad_()
    (first,) = torch.autograd.grad(total(q), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="second derivatives"):
        first.sum().backward()


def test_transforms_of_something_else_pass_through(backend):
    """An outer level must see through an inner one, and a tangent elsewhere does no harm."""
    (q, k, v), one = qkv(), torch.ones(())

    def scaled(factor, v):
        return (factor * flashmask_attention(q, k, v, causal=True, backend=backend)).sum()

    outer = grad(lambda v: grad(scaled)(one, v))(v)
    torch.testing.assert_close(outer, grad(scaled, argnums=1)(one, v))
    _, tangent = jvp(lambda factor: scaled(factor, v), (one,), (one,))
    torch.testing.assert_close(tangent, scaled(one, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(backend, dtype):
    inputs, bounds = [t.requires_grad_() for t in qkv()], bounds_for()
    low = [t.detach().to(dtype).requires_grad_() for t in inputs]

    def attend(inputs):
        return flashmask_attention(*inputs, bounds, causal=True, backend=backend)

    expected = attend(low)
    with torch.autocast("cpu", dtype=dtype):
        out = attend(inputs)
        mixed = attend([low[0], inputs[1], inputs[2]])
        with torch.no_grad():
            silent = attend(inputs)
        op = getattr(torch.ops.flashmask, "forward" if backend == "cpu" else "reference_forward")
        direct = op(*inputs, bounds, None, None, True, 8**-0.5)[0]
        mapped = vmap(lambda q: attend([q, *inputs[1:]]))(inputs[0][None])[0]
    for other in (out, mixed, silent, direct, mapped):
        assert torch.equal(other, expected)
    out.float().sum().backward()
    expected.float().sum().backward()
    for a, b in zip(inputs, low, strict=True):
        assert a.grad.dtype == torch.float32
        assert torch.equal(a.grad, b.grad.float())


def test_autocast_leaves_float64_and_other_devices_alone():
    q = torch.randn(1, 4, 1, 8, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert flashmask_attention(q, q, q, backend="reference").dtype == torch.float64
        q = q.to("meta", torch.float32)
        assert flashmask_attention(q, q, q, backend="reference").dtype == torch.float32


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing(backend, use_reentrant):
    inputs, bounds = [t.requires_grad_() for t in qkv()], bounds_for()
    loss = checkpoint(loss_of(backend), *inputs, bounds, use_reentrant=use_reentrant)
    expected = eager_gradients(backend, inputs, bounds)
    loss.backward()
    assert_all_equal([t.grad for t in inputs], expected)


def test_saved_tensor_hooks(backend):
    inputs, bounds = [t.requires_grad_() for t in qkv()], bounds_for()
    with torch.autograd.graph.save_on_cpu():
        loss = loss_of(backend)(*inputs, bounds)
    assert_all_equal(torch.autograd.grad(loss, inputs), eager_gradients(backend, inputs, bounds))


def test_in_place_changes_before_backward_are_noticed(backend):
    q, k, v = qkv()
    q.requires_grad_()
    out = flashmask_attention(q, k, v, backend=backend)
    k.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_gradients_accumulate_where_an_input_serves_twice(backend):
    x = torch.randn(1, 20, 2, 8, requires_grad=True)
    loss = flashmask_attention(x, x, x, causal=True, backend=backend).pow(2).sum()
    parts = [x.detach().clone().requires_grad_() for _ in range(3)]
    flashmask_attention(*parts, causal=True, backend=backend).pow(2).sum().backward()
    loss.backward()
    torch.testing.assert_close(x.grad, sum(p.grad for p in parts))


def test_dispatch_modes_see_the_op(backend):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Recorder():
        flashmask_attention(*qkv(), causal=True, backend=backend)
    assert any(name.startswith("flashmask.") for name in seen)


def test_tensor_subclasses(backend):
    class Tagged(torch.Tensor):
        pass

    q, k, v = qkv()
    out = flashmask_attention(q.as_subclass(Tagged), k, v, causal=True, backend=backend)
    assert torch.equal(
        out.as_subclass(torch.Tensor), flashmask_attention(q, k, v, causal=True, backend=backend)
    )


def _train(rank, world, port, backend, queue):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world)
    try:
        model = torch.nn.parallel.DistributedDataParallel(_Layer(backend))
        x = _data()[rank : rank + 1]
        model(x).pow(2).mean().backward()
        queue.put((rank, model.module.qkv.weight.grad.tolist()))
    finally:
        torch.distributed.destroy_process_group()


class _Layer(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        torch.manual_seed(3)
        self.qkv, self.backend = torch.nn.Linear(8, 48), backend

    def forward(self, x):
        q, k, v = self.qkv(x).view(*x.shape[:2], 3, 2, 8).unbind(2)
        return flashmask_attention(q, k, v, window_size=3, causal=True, backend=self.backend)


def _data():
    return torch.randn(2, 12, 8, generator=torch.Generator().manual_seed(5))


@pytest.mark.dist
def test_ddp_averages_the_gradients():
    backend = "cpu" if native.is_built() else "reference"
    context = torch.multiprocessing.get_context("spawn")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = context.Queue()
    workers = [
        context.Process(target=_train, args=(rank, 2, port, backend, queue)) for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    got = dict(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    alone = _Layer(backend)
    alone(_data()).pow(2).mean().backward()
    for rank in range(2):
        torch.testing.assert_close(torch.tensor(got[rank]), alone.qkv.weight.grad)


def test_fake_tensors_outside_of_a_compiler(backend):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        out = flashmask_attention(*qkv(), causal=True, backend=backend)
    assert isinstance(out, FakeTensor)
    assert out.shape == (2, 40, 4, 8)


def test_the_profiler_names_the_op(backend):
    inputs = [t.requires_grad_() for t in qkv()]
    with torch.profiler.profile() as profile:
        flashmask_attention(*inputs, causal=True, backend=backend).sum().backward()
    names = {event.key for event in profile.key_averages()}
    prefix = "flashmask::" if backend == "cpu" else "flashmask::reference_"
    assert {f"{prefix}forward", f"{prefix}backward"} <= names


def test_batched_gradients(backend):
    (q, k, v), bounds = qkv(), bounds_for()
    q.requires_grad_()
    out = flashmask_attention(q, k, v, bounds, causal=True, backend=backend)
    directions = torch.randn(3, *out.shape)
    (batched,) = torch.autograd.grad(out, q, directions, is_grads_batched=True, retain_graph=True)
    for i in range(3):
        (one,) = torch.autograd.grad(out, q, directions[i], retain_graph=True)
        torch.testing.assert_close(batched[i], one)
