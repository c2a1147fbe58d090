# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Checkpoints of any layout into any other, described with the AOA mapping language."""

import importlib
from typing import Any

# Public name -> module that defines it; loaded on first use, so that importing is cheap and quiet.
_HOME = {
    "AoaError": "flexckpt.errors",
    "CheckpointError": "flexckpt.errors",
    "FlexckptError": "flexckpt.errors",
    "LayoutError": "flexckpt.errors",
    "LoadReport": "flexckpt.api.load",
    "Saving": "flexckpt.saving",
    "Stats": "flexckpt.execute",
    "TransferError": "flexckpt.errors",
    "Shard": "flexckpt.model",
    "TensorSpec": "flexckpt.model",
    "convert": "flexckpt.api.convert",
    "expand": "flexckpt.api.transform",
    "explain": "flexckpt.api.explain",
    "full_params": "flexckpt.api.full_params",
    "load": "flexckpt.api.load",
    "merge": "flexckpt.api.convert",
    "read_index": "flexckpt.io.detect",
    "save": "flexckpt.api.save",
    "sync": "flexckpt.api.sync",
    "transform": "flexckpt.api.transform",
    "verify": "flexckpt.api.verify",
}
_MODULES = ("interop", "layout", "recipes", "testing")

__all__ = [*_HOME, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"flexckpt.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flexckpt' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
