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
from pathlib import Path

from vmm import native
from vmm.allocator import Allocator
from vmm.errors import Unsupported
from vmm.torch_hooks import cuda_plugin


@functools.cache
def _library() -> ctypes.CDLL:
    import torch

    found = sorted(Path(__file__).parents[1].glob("_torch_cuda*.so"))
    advice = "use mode='plugin', or install the package from source beside this torch"
    if not found:
        raise Unsupported(f"vmm: the module for mode='subclass' was not built; {advice}")
    try:
        module = ctypes.CDLL(str(found[0]))
    except OSError as error:
        raise Unsupported(
            f"vmm: the module for mode='subclass' does not fit torch {torch.__version__}; {advice}"
        ) from error
    module.vmm_cuda_subclass_torch.restype = c_char_p
    module.vmm_cuda_subclass_install.restype = c_int
    module.vmm_cuda_subclass_install.argtypes = [c_char_p, c_void_p]
    module.vmm_cuda_subclass_error.restype = c_char_p
    made_for = module.vmm_cuda_subclass_torch().decode()
    if made_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise Unsupported(
            f"vmm: the module for mode='subclass' was compiled for torch {made_for}, but this is "
            f"torch {torch.__version__}; {advice}"
        )
    return module


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
