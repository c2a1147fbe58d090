# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch.export, strict or not, with a length that varies and through a file."""

import io

import pytest
import torch
from torch.export import Dim, export

from flashmask import FlashMask, flashmask_attention


class Attend(torch.nn.Module):
    def __init__(self, backend):
        super().__init__()
        self.backend = backend

    def forward(self, q, k, v, bounds):
        return flashmask_attention(
            q, k, v, bounds, causal=True, return_softmax_lse=True, backend=self.backend
        )


def arguments(S):
    qkv = [torch.randn(2, S, heads, 8) for heads in (4, 2, 2)]
    return (*qkv, torch.randint(0, S + 1, (2, 1, S, 1), dtype=torch.int32))


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_any_length(backend, strict):
    module, length = Attend(backend), Dim("length")
    shapes = ({1: length}, {1: length}, {1: length}, {2: length})
    program = export(module, arguments(150), dynamic_shapes=shapes, strict=strict)
    for S in (150, 41, 300):
        args = arguments(S)
        for a, b in zip(program.module()(*args), module(*args), strict=True):
            assert torch.equal(a, b)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    prefix = "reference_" if backend == "reference" else ""
    assert getattr(torch.ops.flashmask, f"{prefix}forward").default in called


def test_through_a_file(backend):
    module, args = Attend(backend), arguments(40)
    file = io.BytesIO()
    torch.export.save(export(module, args), file)
    file.seek(0)
    loaded = torch.export.load(file)
    assert torch.equal(loaded.module()(*args)[0], module(*args)[0])


@pytest.mark.parametrize("strict", [True, False])
def test_export_a_flash_mask(cpu_kernels, strict):
    class Masked(torch.nn.Module):
        def forward(self, q, k, v, bounds):
            mask = FlashMask(bounds, causal=True).prepared()
            return flashmask_attention(q, k, v, mask)

    args = arguments(150)
    program = export(Masked(), args, strict=strict)
    assert torch.equal(program.module()(*args), Masked()(*args))


def test_decompositions_keep_the_op(backend):
    program = export(Attend(backend), arguments(40)).run_decompositions()
    assert any("flashmask" in str(node.target) for node in program.graph.nodes)


def test_export_for_training(backend):
    """Gradients flow through an exported program."""
    module, args = Attend(backend), arguments(40)
    program = export(module, args)
    q = args[0].clone().requires_grad_()
    program.module()(q, *args[1:])[0].sum().backward()
    expected = args[0].clone().requires_grad_()
    module(expected, *args[1:])[0].sum().backward()
    torch.testing.assert_close(q.grad, expected.grad)
