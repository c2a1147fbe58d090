# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The implementations under test and what all tests of the package share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from flashmask import native
from flashmask.impl import cpu


def need_cpu_kernels() -> None:
    """Skips only where nothing was built; a module which is there but does not work fails."""
    if not native.is_built():
        pytest.skip("flashmask._C is not built; run `make test`")


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> str:
    """The name of an implementation; a test which uses it runs once for each."""
    if request.param == "cpu":
        need_cpu_kernels()
    return request.param


@pytest.fixture
def cpu_kernels() -> str:
    """For tests about the C++ kernels only."""
    need_cpu_kernels()
    return "cpu"


@pytest.fixture(params=["portable", "avx2", "avx512", "avx512_bf16"])
def isa(request: pytest.FixtureRequest, cpu_kernels: str) -> Iterator[str]:
    """Each instruction-set level which this machine has, forced while the test runs."""
    if request.param not in cpu.available_isas():
        pytest.skip(f"this machine has no {request.param}")
    with cpu.force_isa(request.param):
        yield request.param


@pytest.fixture
def threads() -> Iterator[None]:
    """Restores the number of threads which the test changes."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
