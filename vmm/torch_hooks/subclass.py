# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Serves torch's CUDA tensors through a C++ class of torch, so that all of torch.cuda works.

The class is csrc/torch/cuda_subclass.cpp; it is compiled where the package is installed from source
beside a torch with CUDA.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import c_char_p, c_int, c_void_p

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Unsupported
from vmm.torch_hooks import cuda_plugin
from vmm.torch_hooks.compiled import open_compiled


@functools.cache
def _library() -> ctypes.CDLL:
    return open_compiled(
        "_torch_cuda",
        what="the module for mode='subclass'",
        advice="use mode='plugin', or install the package from source beside this torch",
        version="vmm_cuda_subclass_torch",
        signatures={
            "vmm_cuda_subclass_install": (c_int, [c_char_p, c_void_p]),
            "vmm_cuda_subclass_error": (c_char_p, []),
        },
    )


def require() -> None:
    """Raises unless the class was built for this torch and CUDA is not in use."""
    cuda_plugin.require()
    _library()


def install(allocator: Allocator) -> None:
    """All CUDA tensors of this process come from `allocator`."""
    cuda_plugin.attach(allocator)
    module = _library()
    path = str(native.library_path()).encode()
    if module.vmm_cuda_subclass_install(path, allocator.handle) != 0:
        raise Unsupported(module.vmm_cuda_subclass_error().decode())
