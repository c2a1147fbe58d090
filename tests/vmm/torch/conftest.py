# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Torch under the allocator, for one test."""

import pytest

import vmm
from vmm.torch_hooks import cpu


@pytest.fixture
def hooked():
    """The allocator that serves CPU tensors while the test runs, with all of its checks on."""
    try:
        cpu.require()
    except vmm.Unsupported as error:
        pytest.skip(str(error))
    allocator = vmm.enable(device="cpu", check=2)
    yield allocator
    if vmm.enabled() is not None:
        vmm.disable()
    allocator.check()
