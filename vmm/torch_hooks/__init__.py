# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Puts the allocator under torch, and what to do with it there.

``enable`` and ``disable`` are the doors; the rest acts on the allocator that is enabled.
"""

from vmm.torch_hooks.acts import compact, on_oom, plan, prefetch, remove_on_oom, stats, step, trim
from vmm.torch_hooks.enable import disable, enable, enabled
from vmm.torch_hooks.mem_pool import mem_pool
from vmm.torch_hooks.patch_torch import patch_torch
from vmm.torch_hooks.pins import pin, unpin
from vmm.torch_hooks.pools import pool, sleep, wake

__all__ = [
    "compact",
    "disable",
    "enable",
    "enabled",
    "mem_pool",
    "on_oom",
    "patch_torch",
    "pin",
    "plan",
    "pool",
    "prefetch",
    "remove_on_oom",
    "sleep",
    "stats",
    "step",
    "trim",
    "unpin",
    "wake",
]
