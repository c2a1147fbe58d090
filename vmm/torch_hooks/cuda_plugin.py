# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Serves torch's CUDA tensors through torch's pluggable allocator, whatever the build of torch.

Torch throws in `torch.cuda.memory_stats`, `memory_snapshot` and the like then; `vmm.patch_torch`
and `vmm.observe` help.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int, c_uint32, c_void_p
from typing import Any

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Invalid, Unsupported

# What torch calls the setter of a hook -> our function; see csrc/plugin/torch_plugin.h.
HOOKS = {
    "set_init_fn": "vmm_torch_init",
    "set_reset_fn": "vmm_torch_reset",
    "set_memory_fraction_fn": "vmm_torch_memory_fraction",
    "set_base_alloc_fn": "vmm_torch_base_alloc",
    "set_record_stream_fn": "vmm_torch_record_stream",
    "set_begin_allocate_to_pool": "vmm_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "vmm_torch_end_allocate_to_pool",
    "set_release_pool": "vmm_torch_release_pool",
}


def require_cuda() -> None:
    """Raises Unsupported unless this torch can use a CUDA device."""
    import torch

    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise Unsupported(
            f"vmm: torch {torch.__version__} was built without CUDA; device='cpu' works with it"
        )
    if not torch.cuda.is_available():
        raise Unsupported("vmm: torch finds no CUDA device on this machine; device='cpu' works")


def require() -> None:
    """Raises unless the allocator of CUDA can still be chosen."""
    import torch

    require_cuda()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise Invalid("vmm.enable: CUDA is in use already; call it before the first use of CUDA")


def install(allocator: Allocator) -> None:
    """All CUDA tensors of this process come from `allocator`."""
    import torch

    plug = torch.cuda.memory.CUDAPluggableAllocator(
        str(native.library_path()), "vmm_torch_malloc", "vmm_torch_free"
    )
    hooks = plug.allocator()  # type: ignore[no-untyped-call]
    missing = [setter for setter in HOOKS if not hasattr(hooks, setter)]
    if missing:
        raise Unsupported(f"vmm: torch {torch.__version__} has no {', '.join(missing)}")
    for setter, symbol in HOOKS.items():
        getattr(hooks, setter)(address(symbol))
    attach(allocator)
    try:
        torch.cuda.memory.change_current_allocator(plug)
    except BaseException:
        _function("vmm_torch_install", c_int, c_void_p)(None)
        raise


def attach(allocator: Allocator) -> None:
    """Puts the allocator behind the functions that torch calls."""
    if _function("vmm_torch_install", c_int, c_void_p)(allocator.handle) != 0:
        raise Invalid("vmm.enable: torch allocates CUDA memory from an allocator of vmm already")


def route(device: int, pool: int) -> int:
    """CUDA tensors of this thread on a device come from `pool` from now on; returns the old one."""
    return int(_function("vmm_torch_set_pool", c_uint32, c_int, c_uint32)(device, pool))


def address(symbol: str) -> int:
    """Where a function of the core library lies, as torch wants it."""
    value = ctypes.cast(getattr(native.library(), symbol), c_void_p).value
    assert value is not None
    return value


def _function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(native.library(), name)
    function.restype = result
    function.argtypes = list(arguments)
    return function
