# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which of many boxes may meet a box, by bisection along one axis."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
Bounds = tuple[Sequence[int], Sequence[int]]  # per-axis starts and stops

FEW = 8  # so many boxes are looked at one by one


class Intervals(Generic[T]):
    """Items with bounding boxes, sorted along the axis on which most start at different places."""

    def __init__(self, items: Sequence[T], bounds: Sequence[Bounds]) -> None:
        self.items = list(items)
        self.starts: list[int] | None = None
        if len(items) <= FEW or not bounds[0][0]:
            return
        rank = len(bounds[0][0])
        counts = [len({start[k] for start, _ in bounds}) for k in range(rank)]
        self.axis = max(range(rank), key=counts.__getitem__)
        order = sorted(range(len(items)), key=lambda i: bounds[i][0][self.axis])
        self.items = [items[i] for i in order]
        self.starts = [bounds[i][0][self.axis] for i in order]
        # Boxes may be of any size: the longest tells how far back one that reaches a box may start.
        self.longest = max(stop[self.axis] - start[self.axis] for start, stop in bounds)

    def meeting(self, start: Sequence[int], stop: Sequence[int]) -> Iterator[T]:
        """All items that share elements with the box ``[start, stop)``, and perhaps more."""
        if self.starts is None:
            return iter(self.items)
        low = bisect_right(self.starts, start[self.axis] - self.longest)
        high = bisect_left(self.starts, stop[self.axis])
        return iter(self.items[low:high])
