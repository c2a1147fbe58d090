# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What an allocator holds at one moment: blocks, virtual pages, arenas, statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vmm import native
from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.allocator import Allocator, Arena, Block, Slot

# States of blocks: live; freed but somebody may still use it; free with and without pages.
ACTIVE, PENDING, FREE_MAPPED, FREE_UNMAPPED = native.BLOCK_STATES
STATES = native.BLOCK_STATES
PINS = native.PIN_REASONS


@dataclass
class State:
    """One device of an allocator at one moment; rows as `vmm.Allocator` gives them."""

    device: int = 0
    blocks: Sequence[Block] = ()
    slots: Sequence[Slot] = ()
    arenas: Sequence[Arena] = ()
    stats: dict[str, int] = field(default_factory=dict)


def read_states(allocator: Allocator) -> dict[int, State]:
    """The state of every device of an allocator, by number."""
    states: dict[int, State] = {}
    while True:
        try:
            states[len(states)] = read_state(allocator, len(states))
        except Invalid:
            if not states:
                raise
            return states


def read_state(allocator: Allocator, device: int = 0) -> State:
    """The state of a device now, blocks in address order. Other threads may run between its parts.

    Raises `vmm.errors.Invalid` if there is no such device.
    """
    return State(
        device,
        sorted(allocator.blocks(device=device)),
        sorted(allocator.slots(device=device)),
        sorted(allocator.arenas(device=device)),
        allocator.stats(device=device),
    )
