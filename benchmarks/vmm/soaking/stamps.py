# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Numbers in the memory of live blocks, which nobody but their block may change.

Each block carries its number in the first and last word of every page that it touches: a page that
was taken away, exchanged or given to somebody else shows, whatever the size of the block.
"""

from __future__ import annotations

import ctypes

WORD = 8


def words(at: int, size: int, page: int) -> list[int]:
    """Addresses of the words that carry the number of a block of `size` bytes."""
    if size < WORD:
        return []
    end = at + size // WORD * WORD
    found = []
    for begin in range(at // page * page, end, page):
        low, high = max(begin, at), min(begin + page, end) - WORD
        found += [low, high] if high > low else [low]
    return found


def write(at: int, size: int, page: int, stamp: int) -> None:
    for word in words(at, size, page):
        ctypes.c_uint64.from_address(word).value = stamp


def wrong(at: int, size: int, page: int, stamp: int) -> int | None:
    """The address of the first word that is not `stamp`, or None."""
    for word in words(at, size, page):
        if ctypes.c_uint64.from_address(word).value != stamp:
            return word
    return None
