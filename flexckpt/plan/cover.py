# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The shards of one stored tensor as disjoint regions, and which of them a box meets."""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import pairwise
from operator import lt
from typing import Any

from flexckpt.boxes import Box, Region, c_strides, full_box, shard_regions
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Stored
from flexckpt.plan.intervals import FEW, Intervals

Preference = Callable[[Stored], int]

# Comparisons of boxes, so that no index can keep a rank busy for hours.
MOST_COMPARED = 1 << 23
MOST_SUBTRACTED = 1 << 19


class Cover:
    """Disjoint regions of a stored tensor.

    Of replicas the one with the least ``preference`` is kept, and of overlapping shards each
    element is taken from one only.

    Attributes:
        parts: the regions, each with the shard that it is of.
        whole: there is one region, and it is all of the tensor.
    """

    def __init__(self, entry: Entry, prefer: Preference | None = None) -> None:
        first = entry.shards[0] if len(entry.shards) == 1 else None
        self._found: Intervals[tuple[Region, Stored]] | None = None
        if first is not None and first.flat_range is None and first.shape == entry.shape:
            _check(entry, first)
            strides = first.strides or c_strides(entry.shape)
            region = Region(full_box(entry.shape), strides, 0)
            self.whole = 0 not in entry.shape
            self.parts = [(region, first)] if self.whole else []
            return
        self.whole = False
        apart = _apart(entry.shape, tuple([s[:3] + s[5:6] for s in entry.shards]))
        if apart is not None:
            self.parts = [(region, entry.shards[k]) for region, k in apart]
        else:
            self.parts = _told_apart(entry, prefer)
        if len(self.parts) > FEW:
            self._found = Intervals(self.parts, [p[0].box for p in self.parts])

    def meeting(self, start: Sequence[int], stop: Sequence[int]) -> Iterable[tuple[Region, Stored]]:
        """Regions that may share elements with the box ``[start, stop)``."""
        if self._found is not None:
            return self._found.meeting(start, stop)
        if len(self.parts) == 1:
            return self.parts
        return [
            part
            for part in self.parts
            if all(map(lt, part[0].box.start, stop)) and all(map(lt, start, part[0].box.stop))
        ]


@lru_cache(maxsize=256)
def _apart(
    shape: tuple[int, ...], shards: tuple[tuple[Any, ...], ...]
) -> list[tuple[Region, int]] | None:
    """Regions of shards that lie inside the tensor and share no element; None if they are not so.

    Most tensors of a checkpoint are cut like many others, so the answer is kept.

    Args:
        shape: of the tensor.
        shards: offset, shape, flat range and strides of each.
    """
    parts = []
    for k, (offset, local, flat, strides) in enumerate(shards):
        if not _inside(offset, local, shape):
            return None
        parts += [(region, k) for region in shard_regions(offset, local, flat, strides)]
    parts = [p for p in parts if p[0].box.numel]
    return parts if _disjoint([p[0].box for p in parts]) else None


def _told_apart(entry: Entry, prefer: Preference | None) -> list[tuple[Region, Stored]]:
    """Disjoint regions of shards of which some are replicas or overlap."""
    for stored in entry.shards:
        _check(entry, stored)
    shards = _without_replicas(entry.shards, prefer)
    parts = [(region, stored) for stored in shards for region in stored.regions()]
    parts = [p for p in parts if p[0].box.numel]
    return parts if _disjoint([p[0].box for p in parts]) else _made_disjoint(parts)


def _inside(offset: Sequence[int], local: Sequence[int], shape: Sequence[int]) -> bool:
    return len(offset) == len(local) == len(shape) and all(
        o >= 0 and n >= 0 and o + n <= g for o, n, g in zip(offset, local, shape, strict=True)
    )


def _check(entry: Entry, stored: Stored) -> None:
    if not _inside(stored.offset, stored.shape, entry.shape):
        raise CheckpointError(
            "CKP202",
            f"{entry.key!r} ({entry.state}): a shard at {stored.offset} of shape {stored.shape} "
            f"leaves the global shape {entry.shape}",
        )


def _without_replicas(shards: Sequence[Stored], prefer: Preference | None) -> list[Stored]:
    if len(shards) == 1:
        return list(shards)
    chosen: dict[tuple[object, ...], Stored] = {}
    for stored in shards:
        box = stored[:3]
        if box not in chosen or (prefer is not None and prefer(stored) < prefer(chosen[box])):
            chosen[box] = stored
    return list(chosen.values())


def _disjoint(boxes: Sequence[Box]) -> bool:
    if len(boxes) < 2:
        return True
    if len(boxes) <= 8:
        return not any(a.intersect(b) for k, a in enumerate(boxes) for b in boxes[:k])
    for axis in range(len(boxes[0].start)):
        ranges = sorted((b.start[axis], b.stop[axis]) for b in boxes)
        if all(a[1] <= b[0] for a, b in pairwise(ranges)):
            return True
    # Boxes of a grid meet on no axis alone: sweep along the first, against those still open.
    live: list[Box] = []
    steps = 0
    for box in sorted(boxes):
        live = [b for b in live if b.stop[0] > box.start[0]]
        steps += len(live)
        if steps > MOST_COMPARED:
            return False
        if any(b.intersect(box) for b in live):
            return False
        live.append(box)
    return True


def _made_disjoint(parts: list[tuple[Region, Stored]]) -> list[tuple[Region, Stored]]:
    """Take from every region what earlier ones hold already."""
    out: list[tuple[Region, Stored]] = []
    work = 0
    for region, stored in parts:
        rest = [region.box]
        for earlier, _ in out:
            work += len(rest)
            if work > MOST_SUBTRACTED:
                raise CheckpointError(
                    "CKP202", f"{len(parts)} shards of a tensor overlap in too many ways"
                )
            rest = [piece for box in rest for piece in box.subtract(earlier.box)]
        for box in rest:
            steps = zip(box.start, region.box.start, region.strides, strict=True)
            base = region.base + sum((a - b) * s for a, b, s in steps)
            out.append((Region(box, region.strides, base), stored))
    return out
