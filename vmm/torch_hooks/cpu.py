# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Serves torch's CPU tensors from the allocator, through csrc/torch/cpu_hook.h.

A fork of the process has no allocator: its new tensors are ordinary. Those it inherited are never
freed there. It may write to them, and the parent does not see that; but a page that the child has
not written to yet shows what the parent writes, also after the parent has freed the tensor.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import Any

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Invalid
from vmm.torch_hooks.compiled import open_compiled

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "vmm_cpu_hook_install": (c_int, [c_void_p, c_void_p, c_uint64]),
    "vmm_cpu_hook_uninstall": (c_int, []),
    "vmm_cpu_hook_installed": (c_int, []),
    "vmm_cpu_hook_set_pool": (c_uint32, [c_uint32]),
    "vmm_cpu_hook_error": (c_char_p, []),
}


@functools.cache
def _library() -> ctypes.CDLL:
    return open_compiled(
        "_torch_cpu",
        what="the hook for CPU tensors",
        advice="install the package from source beside this torch, without PORTABLE=1",
        version="vmm_cpu_hook_torch",
        signatures=_SIGNATURES,
    )


def require() -> None:
    """Raises Unsupported if the hook was not built for this torch."""
    _library()


def install(allocator: Allocator, min_size: int) -> None:
    """CPU tensors of at least `min_size` bytes come from `allocator`, which must stay open."""
    table = native.library().vmm_get_table(1)
    _check(_library().vmm_cpu_hook_install(table, allocator.handle, min_size))


def uninstall() -> None:
    """Puts the allocator back that was there before."""
    _check(_library().vmm_cpu_hook_uninstall())


def route(device: int, pool: int) -> int:
    """CPU tensors of this thread come from `pool` from now on; returns the old one."""
    return int(_library().vmm_cpu_hook_set_pool(pool))


def _check(status: int) -> None:
    if status != 0:
        raise Invalid(_library().vmm_cpu_hook_error().decode())
