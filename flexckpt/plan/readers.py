# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which rank reads or writes what, so that all move about equally many bytes."""

from collections.abc import Hashable, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)


def balanced(sizes: Mapping[K, int], ranks: Sequence[int]) -> dict[K, int]:
    """Share items among ranks, largest first, each to the least loaded (Graham's LPT rule).

    Args:
        sizes: bytes of each item. Items of one size are taken in the order of their names, so that
            all ranks decide alike whatever order they list them in.
        ranks: those that can take any of the items.
    """
    return constrained({item: (size, ranks) for item, size in sizes.items()})


def constrained(items: Mapping[K, tuple[int, Sequence[int]]]) -> dict[K, int]:
    """Share items among ranks of which each item admits some: those with the fewest choices first.

    Args:
        items: ``(bytes, ranks that can take it)`` by name.
    """
    load: dict[int, int] = {}
    chosen: dict[K, int] = {}
    order: list[tuple[Any, int, Sequence[int]]] = [
        (item, size, ranks) for item, (size, ranks) in items.items()
    ]
    order.sort(key=lambda row: (min(len(row[2]), 2), -row[1], row[0]))
    # Where all items admit the same ranks a heap finds the least loaded at once.
    if len({tuple(ranks) for _, _, ranks in order}) == 1:
        heap = [(0, rank) for rank in order[0][2]]
        heapify(heap)
        for item, size, _ in order:
            total, rank = heap[0]
            chosen[item] = rank
            heapreplace(heap, (total + size, rank))
        return chosen
    for item, size, ranks in order:
        rank = min(ranks, key=lambda r: (load.get(r, 0), r))
        chosen[item] = rank
        load[rank] = load.get(rank, 0) + size
    return chosen
