# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""An allocator small enough to count its pages by hand."""

from __future__ import annotations

from typing import Any

from vmm.allocator import Allocator, Block

PAGE = 4096


def opened(**keys: Any) -> Allocator:
    """Null driver, pages of 4 KiB, no small arena, all invariants after each call."""
    plain = {
        "driver": "null",
        "granularity": PAGE,
        "page": PAGE,
        "small_max": 0,
        "grow": 0,
        "device_bytes": 256 * PAGE,
        "checking": 1,
        "check": 2,
    }
    return Allocator({**plain, **keys})


def block_at(allocator: Allocator, address: int) -> Block:
    """The block of any state that holds an address."""
    (found,) = [b for b in allocator.blocks() if b.address <= address < b.address + b.size]
    return found


def pages_of(allocator: Allocator, address: int, size: int) -> list[int]:
    """The physical pages behind a range."""
    slots = {slot.address: slot.page for slot in allocator.slots() if not slot.stale}
    first = address // PAGE * PAGE
    return [slots[at] for at in range(first, address + size, PAGE)]
