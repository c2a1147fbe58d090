# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""FlashMask: attention under column-wise sparse masks, as custom ops of torch.

Public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashmask import backends, masks
    from flashmask.api import flashmask_attention
    from flashmask.mask.flash_mask import FlashMask
    from flashmask.plotting import plot

__all__ = ["FlashMask", "__version__", "backends", "flashmask_attention", "masks", "plot"]

# Public name -> module and the attribute in it; no attribute for a module itself.
_HOME = {
    "FlashMask": ("flashmask.mask.flash_mask", "FlashMask"),
    "backends": ("flashmask.backends", None),
    "flashmask_attention": ("flashmask.api", "flashmask_attention"),
    "masks": ("flashmask.masks", None),
    "ops": ("flashmask.ops", None),
    "plot": ("flashmask.plotting", "plot"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        try:
            value: Any = metadata.version("paddle-on-torch")
        except metadata.PackageNotFoundError:
            value = "0+unknown"  # a source tree which was never installed
    elif name in _HOME:
        importlib.import_module("flashmask.ops")  # masks plan with an op, so the ops must be there
        module, attribute = _HOME[name]
        value = importlib.import_module(module)
        value = value if attribute is None else getattr(value, attribute)
    else:
        raise AttributeError(f"module 'flashmask' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
