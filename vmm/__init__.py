# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A virtual-memory allocator that defragments while training runs, and the tool to see memory."""

import importlib
from typing import Any

# Public name -> module that defines it; loaded on first use, so that importing is cheap and quiet.
_HOME = {
    "Allocator": "vmm.allocator",
    "Dead": "vmm.errors",
    "DriverError": "vmm.errors",
    "Invalid": "vmm.errors",
    "OutOfMemory": "vmm.errors",
    "Unsupported": "vmm.errors",
    "VmmError": "vmm.errors",
}
_MODULES = ("observe", "sim", "view")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"vmm.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vmm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
