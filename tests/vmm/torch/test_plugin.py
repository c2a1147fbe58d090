# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The functions behind torch's pluggable allocator, called as torch calls them."""

import ctypes

import pytest
import torch

import vmm
from tests.vmm.torch.compiling import CORE, build, needs, needs_core, run
from vmm import native
from vmm.torch_hooks import cuda_plugin, state, subclass


@needs("g++")
@needs_core
def test_pools_pins_limits_and_failures_over_the_host_driver(tmp_path):
    flags = ("-std=c++20", "-Wno-pedantic")
    program = build("plugin_calls.cpp", tmp_path / "plugin_calls", *flags)
    assert run(program, str(CORE[0])) == "ok\n"


class Hooks:
    """What torch's object would be told."""

    def __init__(self):
        self.told = {}

    def __getattr__(self, name):
        if name not in cuda_plugin.HOOKS:
            raise AttributeError(name)
        return lambda address: self.told.__setitem__(name, address)


class Plug:
    def __init__(self, path, malloc, free):
        self.opened = (path, malloc, free)
        self.hooks = Hooks()

    def allocator(self):
        return self.hooks


@pytest.fixture
def detached():
    yield
    native.library().vmm_torch_install(None)
    state.replace(None)


@needs_core
def test_every_hook_gets_the_address_of_its_function(monkeypatch, detached):
    chosen = []
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Plug)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", chosen.append)
    with vmm.Allocator(driver="host", device_bytes="64MiB") as allocator:
        cuda_plugin.install(allocator)
        (plug,) = chosen
        assert plug.opened == (str(CORE[0]), "vmm_torch_malloc", "vmm_torch_free")
        assert set(plug.hooks.told) == set(cuda_plugin.HOOKS)
        for setter, address in plug.hooks.told.items():
            function = getattr(native.library(), cuda_plugin.HOOKS[setter])
            assert address == ctypes.cast(function, ctypes.c_void_p).value
        with pytest.raises(vmm.Invalid, match="from an allocator of vmm already"):
            cuda_plugin.attach(allocator)


@needs_core
def test_a_refusal_of_torch_leaves_nothing_behind(monkeypatch, detached):
    def refuse(plug):
        raise RuntimeError("Can't swap an already initialized allocator")

    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", Plug)
    monkeypatch.setattr(torch.cuda.memory, "change_current_allocator", refuse)
    with vmm.Allocator(driver="host", device_bytes="64MiB") as allocator:
        with pytest.raises(RuntimeError, match="already initialized"):
            cuda_plugin.install(allocator)
        cuda_plugin.attach(allocator)  # it would refuse if one were there


@needs_core
def test_torch_statistics_come_from_the_allocator_while_patched(monkeypatch, detached):
    allocator = state.TorchAllocator(driver="host", device_bytes="64MiB")
    state.replace(state.State(allocator, "cuda", "plugin", None, cuda_plugin.route))
    address = allocator.alloc(3 << 20)
    genuine = torch.cuda.memory_snapshot
    with vmm.patch_torch():
        assert torch.cuda.memory_stats(0)["requested_bytes.all.current"] == 3 << 20
        assert torch.cuda.memory_allocated(0) == 3 << 20
        allocator.free(address)
        torch.cuda.reset_peak_memory_stats(0)
        assert torch.cuda.max_memory_allocated(0) == 0
        assert sum(row["total_size"] for row in torch.cuda.memory_snapshot()) >= 3 << 20
    assert torch.cuda.memory_snapshot is genuine


without_cuda = pytest.mark.skipif(
    hasattr(torch._C, "_cuda_customAllocator"), reason="this torch has CUDA"
)


@without_cuda
@pytest.mark.parametrize("call", [vmm.enable, vmm.mem_pool, subclass.require])
def test_a_torch_without_cuda_is_told_in_one_sentence(call):
    with pytest.raises(vmm.Unsupported, match="was built without CUDA; device='cpu' works"):
        call()
    assert vmm.enabled() is None
