# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paddle's two allocators once more, as short as can be: lists that are walked from end to end.

One stream and no limit. Sizes and addresses in bytes; a row is [address, size, is free, chunk].
"""

from __future__ import annotations

M = 1 << 20


class Naive:
    """Best fit, with what happens to the rest of a block and on a miss left open."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.live: dict[int, list[int]] = {}
        self.reserved = 0

    def best(self, size: int) -> list[int] | None:
        fitting = [row for row in self.rows if row[2] and row[1] >= size]
        return min(fitting, key=lambda row: (row[1], row[0]), default=None)

    def free(self, id: int) -> None:
        self.live.pop(id)[2] = 1
        for at in range(len(self.rows) - 1, 0, -1):
            low, high = self.rows[at - 1 : at + 1]
            if low[2] and high[2] and low[3] == high[3]:
                low[1] += high[1]
                del self.rows[at]


class NaiveAutoGrowth(Naive):
    """Chunks of at least `least` bytes; a request takes the tail of a block."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.end = least, 1 << 40

    def alloc(self, id: int, size: int) -> int:
        size = -(-size // 256) * 256
        row = self.best(size)
        if row is None:
            chunk = max(size, self.least)
            row = [self.end, chunk, 1, self.end]
            self.rows.append(row)
            self.end += -(-chunk // 512) * 512
            self.reserved += chunk
        if row[1] > size:
            row[1] -= size
            row = [row[0] + row[1], size, 0, row[3]]
            self.rows.append(row)
            self.rows.sort()
        row[2] = 0
        self.live[id] = row
        return row[0]


class NaiveVmm(Naive):
    """One heap that grows by what its free tail lacks; a request takes the front of a block."""

    def alloc(self, id: int, size: int) -> int:
        size = -(-size // 256) * 256
        row = self.best(size)
        if row is None:
            if not self.rows or not self.rows[-1][2]:
                self.rows.append([(1 << 40) + self.reserved, 0, 1, 0])
            row = self.rows[-1]
            more = -(-(size - row[1]) // (2 * M)) * 2 * M
            row[1] += more
            self.reserved += more
        if row[1] > 2 * size or row[1] - size > 256:
            self.rows.append([row[0] + size, row[1] - size, 1, 0])
            self.rows.sort()
            row[1] = size
        row[2] = 0
        self.live[id] = row
        return row[0]
