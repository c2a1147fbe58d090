# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The twelve ranges of sizes that Paddle's memory summary counts blocks by."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

_M, _G = 1 << 20, 1 << 30
# The first size that is no longer in the range, and the name of the range.
RANGES = (
    (_M, "below 1M"),
    (10 * _M, "1-10M"),
    (50 * _M, "10-50M"),
    (100 * _M, "50-100M"),
    (200 * _M, "100-200M"),
    (400 * _M, "200-400M"),
    (600 * _M, "400-600M"),
    (800 * _M, "600-800M"),
    (_G, "800M-1G"),
    (2 * _G, "1-2G"),
    (3 * _G, "2-3G"),
    (1 << 64, "3G and more"),
)
_ENDS = [end for end, _ in RANGES]


def histogram(sizes: Iterable[int]) -> list[tuple[int, int]]:
    """(number, bytes) of the sizes (bytes) in each of `RANGES`."""
    counts, totals = [0] * len(RANGES), [0] * len(RANGES)
    for size in sizes:
        at = bisect_right(_ENDS, size)
        counts[at] += 1
        totals[at] += size
    return list(zip(counts, totals, strict=True))
