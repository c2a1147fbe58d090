# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Instruction-set levels of the C++ kernels: which there are, which is in use, forcing one.

The kernels themselves are registered by the compiled module when it is loaded; nothing is
registered here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from flashmask import native


def _compiled() -> ModuleType:
    module = native.load()
    if module is None:
        raise RuntimeError(f"No instruction-set levels: {native.why_unavailable()}.")
    return module


def available_isas() -> list[str]:
    """Levels which this machine can run, best last, out of portable, avx2, avx512 and avx512_bf16.

    Raises:
        RuntimeError: the compiled module is missing.
    """
    return list(_compiled().isa_levels())


def current_isa() -> str:
    """The level in use.

    Raises:
        RuntimeError: the compiled module is missing.
    """
    return str(_compiled().isa())


@contextmanager
def force_isa(name: str) -> Iterator[None]:
    """Runs the kernels of one level inside the ``with`` block, for all threads of the process.

    Args:
        name: one of :func:`available_isas`.

    Raises:
        ValueError: this machine has no such level.
        RuntimeError: the compiled module is missing.
    """
    module = _compiled()
    before = module.isa()
    module.set_isa(name)
    try:
        yield
    finally:
        module.set_isa(before)


def release_memory() -> int:
    """Frees the working memory which the kernels keep between calls; at most 128 MiB.

    Returns:
        The number of bytes freed.

    Raises:
        RuntimeError: the compiled module is missing.
    """
    return int(_compiled().release_memory())
