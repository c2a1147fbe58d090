# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What any allocator must keep, as plain as can be: which bytes are in use."""

from __future__ import annotations

from dataclasses import dataclass, field

UNIT = 512


@dataclass
class Block:
    size: int
    pool: int


@dataclass
class ByteMap:
    """Knows what is live. It places nothing: it only judges the places that it is told."""

    live: dict[int, Block] = field(default_factory=dict)
    peak: int = 0

    @staticmethod
    def rounded(size: int) -> int:
        return -(-size // UNIT) * UNIT

    def put(self, at: int, size: int, pool: int = 0) -> None:
        """Asserts that the bytes are nobody's, and that the address is one of a block."""
        assert at % UNIT == 0
        for other, block in self.live.items():
            apart = at + size <= other or other + block.size <= at
            assert apart, f"{at:#x} of {size} bytes lies in the live {other:#x}"
        self.live[at] = Block(size, pool)
        self.peak = max(self.peak, self.allocated)

    def take(self, at: int) -> None:
        del self.live[at]

    @property
    def requested(self) -> int:
        return sum(block.size for block in self.live.values())

    @property
    def allocated(self) -> int:
        return sum(self.rounded(block.size) for block in self.live.values())
