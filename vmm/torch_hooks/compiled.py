# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Opens a library that was compiled for one version of torch, or says why it cannot."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_char_p
from pathlib import Path
from typing import Any

from vmm.errors import Unsupported


def open_compiled(
    stem: str,
    *,
    what: str,
    advice: str,
    version: str,
    signatures: Mapping[str, tuple[Any, list[Any]]],
) -> ctypes.CDLL:
    """The library ``vmm/<stem>*.so`` with its signatures set.

    Args:
        what: how a sentence names it.
        advice: what a user can do, the end of every sentence.
        version: the function of the library that says which torch it was compiled for.
        signatures: function -> (result, arguments).

    Raises:
        Unsupported: it was not built, or for another minor version of torch.
    """
    import torch  # first: the library needs those of torch

    found = sorted(Path(__file__).parents[1].glob(f"{stem}*.so"))
    if not found:
        raise Unsupported(f"vmm: {what} was not built; {advice}")
    try:
        library = ctypes.CDLL(str(found[0]))
    except OSError as error:
        raise Unsupported(
            f"vmm: {what} does not fit torch {torch.__version__}; {advice}"
        ) from error
    for name, (result, arguments) in {**signatures, version: (c_char_p, [])}.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    made_for = getattr(library, version)().decode()
    if made_for.split(".")[:2] != torch.__version__.split(".")[:2]:
        raise Unsupported(
            f"vmm: {what} was compiled for torch {made_for}, but this is torch "
            f"{torch.__version__}; {advice}"
        )
    return library
