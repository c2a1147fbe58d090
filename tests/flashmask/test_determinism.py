# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The same bits on every run and for every number of threads, on each instruction-set level."""

import pytest
import torch

from flashmask import flashmask_attention
from flashmask.impl import cpu
from tests.flashmask.case_masks import CASES, problem_of
from tests.flashmask.oracle import FLOATS, make_problem
from tests.flashmask.run import attend, check, same

(EVICTION,) = [case for case in CASES if case["id"] == "deterministic_repeat"]


def test_bitwise_repeatable(backend):
    problem = problem_of(EVICTION)
    first = attend(problem, backend)
    assert all(same(first, attend(problem, backend)) for _ in range(3))


@pytest.mark.parametrize("dtype", list(FLOATS.values()), ids=str)
def test_independent_of_the_number_of_threads(cpu_kernels, dtype, threads):
    bounds = torch.randint(0, 501, (1, 2, 500, 2), dtype=torch.int32)
    problem = make_problem(
        1, 500, 500, 4, 2, 64, 64, dtype, bounds=bounds, causal=True, lse_gradient=True
    )
    results = []
    for count in (1, 2, 3, 7):
        torch.set_num_threads(count)
        results.append(attend(problem, cpu_kernels))
    assert all(same(results[0], result) for result in results)


def test_many_short_sequences_are_independent_of_the_number_of_threads(cpu_kernels, threads):
    """How such a batch is cut into tasks depends on the number of threads, its results do not."""
    bounds = torch.randint(0, 161, (18, 1, 160, 2), dtype=torch.int32)
    problem = make_problem(
        18, 160, 160, 4, 2, 24, 16, torch.bfloat16, bounds=bounds, lse_gradient=True
    )
    results = []
    for count in (1, 4, 9, 10):
        torch.set_num_threads(count)
        results.append(check(problem, cpu_kernels))
    assert all(same(results[0], result) for result in results)


def test_deterministic_algorithms_can_be_demanded(backend):
    problem = make_problem(1, 70, 70, 1, 1, 8, 8, torch.float32, causal=True)
    torch.use_deterministic_algorithms(True)
    try:
        for flag in (True, False):
            check(problem, backend, deterministic=flag)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", list(FLOATS.values()), ids=str)
@pytest.mark.parametrize("D", [3, 64, 128])
def test_instruction_set_levels(isa, dtype, D):
    bounds = torch.randint(0, 261, (1, 2, 270, 4), dtype=torch.int32)
    problem = make_problem(1, 260, 270, 4, 2, D, D, dtype, bounds=bounds, lse_gradient=True)
    check(problem, "cpu")


def test_levels_can_be_forced_and_come_back(cpu_kernels):
    before = cpu.current_isa()
    levels = cpu.available_isas()
    assert levels[0] == "portable"
    assert before in levels
    for level in levels:
        with cpu.force_isa(level):
            assert cpu.current_isa() == level
    with pytest.raises(ValueError, match="mmx"), cpu.force_isa("mmx"):
        pass
    assert cpu.current_isa() == before


def test_many_calls_at_once(cpu_kernels):
    """Several Python threads call at the same time, as a server would."""
    from concurrent.futures import ThreadPoolExecutor

    q = torch.randn(1, 300, 2, 32)
    expected = flashmask_attention(q, q, q, causal=True)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: flashmask_attention(q, q, q, causal=True), range(32)))
    assert all(torch.equal(result, expected) for result in results)
