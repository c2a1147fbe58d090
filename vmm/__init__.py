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
    "FormatError": "vmm.errors",
    "Fragmentation": "vmm.observe.api",
    "Invalid": "vmm.errors",
    "MemoryAnalysisTool": "vmm.observe.api",
    "OutOfMemory": "vmm.errors",
    "Recorder": "vmm.observe.api",
    "Recording": "vmm.observe.api",
    "Region": "vmm.observe.api",
    "Unsupported": "vmm.errors",
    "VmmError": "vmm.errors",
    "blocks": "vmm.observe.api",
    "compact": "vmm.torch_hooks.acts",
    "disable": "vmm.torch_hooks.enable",
    "enable": "vmm.torch_hooks.enable",
    "enabled": "vmm.torch_hooks.enable",
    "fragmentation": "vmm.observe.api",
    "free_blocks": "vmm.observe.api",
    "mem_pool": "vmm.torch_hooks.mem_pool",
    "memory_stats": "vmm.observe.api",
    "on_oom": "vmm.torch_hooks.acts",
    "page_map": "vmm.observe.api",
    "patch_torch": "vmm.torch_hooks.patch_torch",
    "pin": "vmm.torch_hooks.pins",
    "plan": "vmm.torch_hooks.acts",
    "pool": "vmm.torch_hooks.pools",
    "prefetch": "vmm.torch_hooks.acts",
    "record": "vmm.observe.api",
    "region": "vmm.observe.api",
    "remove_on_oom": "vmm.torch_hooks.acts",
    "sleep": "vmm.torch_hooks.pools",
    "snapshot": "vmm.observe.api",
    "stats": "vmm.torch_hooks.acts",
    "step": "vmm.torch_hooks.acts",
    "summary": "vmm.observe.api",
    "top": "vmm.observe.api",
    "trim": "vmm.torch_hooks.acts",
    "unpin": "vmm.torch_hooks.pins",
    "wake": "vmm.torch_hooks.pools",
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
