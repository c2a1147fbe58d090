# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Seeing memory: recordings, regions, summaries and exports. The functions are those of `api`."""

import importlib
from typing import Any

__all__ = [
    "Fragmentation",
    "MemoryAnalysisTool",
    "Recorder",
    "Recording",
    "Region",
    "blocks",
    "fragmentation",
    "free_blocks",
    "memory_stats",
    "page_map",
    "record",
    "region",
    "snapshot",
    "summary",
    "top",
]


def __getattr__(name: str) -> Any:
    # Loaded on first use, for numpy comes with it.
    if name in __all__:
        value = getattr(importlib.import_module("vmm.observe.api"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vmm.observe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
