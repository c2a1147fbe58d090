# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The working memory that the C++ kernels keep between calls."""

from __future__ import annotations

import threading

import torch

from flashmask import flashmask_attention
from flashmask.impl import cpu

MIB = 2**20


def test_kept_memory_is_bounded_and_can_be_released(cpu_kernels):
    cpu.release_memory()
    assert cpu.release_memory() == 0
    for seqlen in (3000, 5000, 9000, 13000):  # packed keys and values of 6 MiB and more
        query = torch.randn(1, seqlen, 2, 128)
        flashmask_attention(query, query, query, window_size=16, causal=True)
    kept = cpu.release_memory()
    assert 2 * MIB <= kept <= 128 * MIB
    assert cpu.release_memory() == 0


def test_calls_from_several_threads_do_not_share_memory(cpu_kernels):
    torch.manual_seed(0)
    inputs = [torch.randn(1, 4200, 1, 128) for _ in range(4)]
    expected = [flashmask_attention(x, x, x, window_size=64, causal=True) for x in inputs]
    wrong = []

    def work(x: torch.Tensor, y: torch.Tensor) -> None:
        for _ in range(5):
            if not torch.equal(flashmask_attention(x, x, x, window_size=64, causal=True), y):
                wrong.append(x)

    threads = [
        threading.Thread(target=work, args=pair) for pair in zip(inputs, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
