# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Loads the compiled module, which adds CPU kernels to the ops, or remembers why it could not.

A missing module is no error here: the ops and the reference implementation work without it.
Whoever needs it asks :func:`why_unavailable` and gets a sentence with the reason and the way out.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

BUILD_COMMAND = "pip install --no-build-isolation ."

_module: ModuleType | None = None
_reason: str | None = None
_tried = False


def load() -> ModuleType | None:
    """The compiled module, loaded on the first call; None when it cannot be loaded."""
    global _module, _reason, _tried
    if not _tried:
        _tried = True
        try:
            _module = importlib.import_module("flashmask._C")
        except ImportError as error:
            _reason = " ".join(str(error).split())
    return _module


def is_built() -> bool:
    """Whether a compiled module lies in the package, even one which cannot be loaded."""
    return importlib.util.find_spec("flashmask._C") is not None


def why_unavailable() -> str | None:
    """One sentence on why there is no compiled module and what helps; None when it is loaded."""
    if load() is not None:
        return None
    return (
        f"the compiled module flashmask._C could not be loaded ({_reason}); build it with "
        f'`{BUILD_COMMAND}` in the source tree, or pass backend="reference"'
    )
