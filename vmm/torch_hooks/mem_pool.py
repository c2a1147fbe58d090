# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The allocator behind a `torch.cuda.MemPool`, beside torch's own allocator."""

from __future__ import annotations

from ctypes import c_int, c_void_p
from typing import TYPE_CHECKING, Any

from vmm import native
from vmm.errors import Invalid
from vmm.torch_hooks import cuda_plugin, state
from vmm.torch_hooks.state import TorchAllocator

if TYPE_CHECKING:
    import torch

_shared: TorchAllocator | None = None


def mem_pool(
    *, use_on_oom: bool = False, no_split: bool = False, **config: Any
) -> torch.cuda.MemPool:
    """A pool for ``with torch.cuda.use_mem_pool(pool)`` whose memory comes from this allocator.

    Torch asks it for segments of 2 MiB and more, not for tensors, and returns them late: pages
    move between segments, but holes inside a segment stay holes. `vmm.enable` has no such bound.
    All pools of a process share one allocator; when it has no memory left, torch frees what it
    caches and asks again.

    Args:
        use_on_oom: torch may use the pool for others before it gives up.
        no_split: torch does not split the segments of the pool.
        config: the keys of docs/vmm.md, with the first pool of the process.

    Raises:
        Unsupported: this torch or machine has no CUDA.
        Invalid: an allocator for CUDA is enabled, or keys after the first pool.
    """
    global _shared
    cuda_plugin.require_cuda()
    there = state.current()
    if there is not None and there.device_type == "cuda":
        raise Invalid("vmm.mem_pool: vmm serves all CUDA tensors already; use vmm.pool(name)")
    if _shared is not None and config:
        raise Invalid("vmm.mem_pool: the pools of a process share one allocator, which is set up")
    import torch

    plug = torch.cuda.memory.CUDAPluggableAllocator(
        str(native.library_path()), "vmm_mempool_malloc", "vmm_mempool_free"
    )
    if _shared is None:
        allocator = TorchAllocator(None, **config, driver="cuda")
        install = native.library().vmm_mempool_install
        install.restype, install.argtypes = c_int, [c_void_p]
        install(allocator.handle)
        _shared = allocator
    hooks = plug.allocator()  # type: ignore[no-untyped-call]
    return torch.cuda.MemPool(hooks, use_on_oom=use_on_oom, no_split=no_split)
