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
from pathlib import Path
from typing import Any

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Invalid, Unsupported

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "vmm_cpu_hook_torch": (c_char_p, []),
    "vmm_cpu_hook_install": (c_int, [c_void_p, c_void_p, c_uint64]),
    "vmm_cpu_hook_uninstall": (c_int, []),
    "vmm_cpu_hook_installed": (c_int, []),
    "vmm_cpu_hook_set_pool": (c_uint32, [c_uint32]),
    "vmm_cpu_hook_error": (c_char_p, []),
}


@functools.cache
def _library() -> ctypes.CDLL:
    import torch  # first: the hook needs its libraries

    found = sorted(Path(__file__).parents[1].glob("_torch_cpu*.so"))
    advice = "install the package from source beside this torch, without PORTABLE=1"
    if not found:
        raise Unsupported(f"vmm: the hook for CPU tensors was not built; {advice}")
    try:
        hook = ctypes.CDLL(str(found[0]))
    except OSError as error:
        raise Unsupported(
            f"vmm: the hook for CPU tensors does not fit torch {torch.__version__}; {advice}"
        ) from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(hook, name)
        function.restype = result
        function.argtypes = arguments
    made_for = hook.vmm_cpu_hook_torch().decode()
    if made_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise Unsupported(
            f"vmm: the hook for CPU tensors was compiled for torch {made_for}, but this is torch "
            f"{torch.__version__}; {advice}"
        )
    return hook


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
