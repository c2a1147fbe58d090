# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Requests of `align_large` and more begin at a page, by whatever way they are served."""

from __future__ import annotations

from tests.vmm.core.small import PAGE, block_at, opened

KEYS = {"align_large": 2 * PAGE, "limit": 64 * PAGE}


def test_cut_out_of_the_middle() -> None:
    with opened(**KEYS) as allocator:
        allocator.alloc(512)
        middle = allocator.alloc(512)
        allocator.free(allocator.alloc(20 * PAGE))
        allocator.free(middle)
        at = allocator.alloc(3 * PAGE)
        assert at % PAGE == 0
        assert block_at(allocator, at - 512).state == "free"
        assert block_at(allocator, at + 3 * PAGE).state == "free"


def test_rest_above_can_be_used() -> None:
    with opened(**KEYS) as allocator:
        guard = allocator.alloc(512)
        low, high = allocator.alloc(512), allocator.alloc(8 * PAGE)
        allocator.free(low)
        allocator.free(high)
        first = allocator.alloc(2 * PAGE)
        second = allocator.alloc(2 * PAGE)
        assert second == first + 2 * PAGE
        assert guard // PAGE == low // PAGE


def test_block_that_just_fits_is_used_again() -> None:
    with opened(**KEYS) as allocator:
        blocks = [allocator.alloc(4 * PAGE) for _ in range(4)]
        allocator.free(blocks[1])
        assert allocator.alloc(4 * PAGE) == blocks[1]
        stats = allocator.stats()
        assert (stats["pages.created"], stats["steals.move"]) == (16, 0)


def test_block_of_another_stream() -> None:
    with opened(**KEYS) as allocator:
        low = allocator.alloc(512, stream=1)
        middle = allocator.alloc(19 * PAGE, stream=1)
        allocator.free(low)
        allocator.free(middle)
        for _ in range(4):
            assert allocator.alloc(3 * PAGE, stream=2) % PAGE == 0
