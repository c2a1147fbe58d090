# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The pool as it stood before the first event of a snapshot: its events undone, last one first."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field

from vmm.errors import FormatError, Unsupported
from vmm.sim.models.torch_settings import SMALL_LIMIT, SMALL_SEGMENT, TorchSettings
from vmm.sim.snapshot import (
    ALLOC,
    FREE,
    FREE_COMPLETED,
    FREE_REQUESTED,
    LIVE,
    PENDING,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Snapshot,
)


class InconsistentError(FormatError):
    """The events of a snapshot do not lead to its segments; `event` is where that shows."""

    def __init__(self, event: int, text: str) -> None:
        super().__init__(f"event {event} does not lead to the segments at the end: {text}")
        self.event = event


@dataclass(eq=False)
class StartBlock:
    """A block in use. `size` is 0 while it is unknown; no byte from `bound` on belongs to it."""

    address: int
    requested: int
    state: str
    size: int = 0
    bound: int = 0
    open: bool = False  # the block may be up to 1 MiB longer than `size` says


@dataclass(eq=False)
class StartSegment:
    """A segment and its blocks in use, in the order of their addresses."""

    address: int
    size: int
    stream: int
    pool: int
    small: bool
    blocks: dict[int, StartBlock] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)

    def add(self, block: StartBlock) -> None:
        at = bisect_left(self.order, block.address)
        last = at == len(self.order)
        block.bound = self.address + self.size if last else self.order[at]
        if at:
            # Whatever lies between a block and the next one starts where the block ends.
            before = self.blocks[self.order[at - 1]]
            before.bound = min(before.bound, block.address)
        self.order.insert(at, block.address)
        self.blocks[block.address] = block

    def remove(self, address: int) -> StartBlock:
        del self.order[bisect_left(self.order, address)]
        return self.blocks.pop(address)


@dataclass(eq=False)
class StartingLayout:
    """`segment_pools`: for each ``segment_alloc`` event the pool that the segment belongs to."""

    segments: list[StartSegment]
    segment_pools: dict[int, int]


def starting_layout(snapshot: Snapshot, settings: TorchSettings) -> StartingLayout:
    """Undoes the events.

    A block that was freed on the way has the size that its request is rounded to, and up to 1 MiB
    more in a large segment: no free block there is that small, so a shorter gap belongs to the
    block before it. Where a longer gap follows at all times the size stays `open`.

    Raises `InconsistentError`, and `vmm.errors.Unsupported` for expandable segments.
    """
    if any(segment["is_expandable"] for segment in snapshot.segments):
        raise Unsupported("the snapshot was taken with expandable segments")
    undo = _Undo(snapshot)
    columns = (snapshot.action, snapshot.addr, snapshot.size, snapshot.stream, snapshot.pool)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for event in range(len(rows) - 1, -1, -1):
        undo.event(event, *rows[event])
    segments = [undo.segments[address] for address in undo.order]
    for segment in segments:
        for address in segment.order:
            _settle(segment, segment.blocks[address], settings)
    return StartingLayout(segments, undo.segment_pools)


class _Undo:
    def __init__(self, snapshot: Snapshot) -> None:
        self.segments: dict[int, StartSegment] = {}
        self.order: list[int] = []
        self.segment_pools: dict[int, int] = {}
        for data in snapshot.segments:
            segment = self._add_segment(
                data["address"],
                data["total_size"],
                data["stream"],
                data["pool"],
                data["segment_type"] == "small",
            )
            for block in data["blocks"]:
                if block["state"] != FREE:
                    segment.add(
                        StartBlock(
                            block["address"], block["requested_size"], block["state"], block["size"]
                        )
                    )

    def event(
        self, event: int, action: int, address: int, size: int, stream: int, pool: int
    ) -> None:
        if action == ALLOC:
            segment = self._segment_of(event, address)
            if address not in segment.blocks:
                raise InconsistentError(event, f"nothing is allocated at {address:#x} afterwards")
            segment.remove(address)
        elif action == FREE_COMPLETED:
            segment = self._segment_of(event, address)
            if address in segment.blocks:
                raise InconsistentError(event, f"{address:#x} is still allocated after its free")
            segment.add(StartBlock(address, size, PENDING))
        elif action == FREE_REQUESTED:
            block = self._segment_of(event, address).blocks.get(address)
            if block is None or block.state != PENDING:
                raise InconsistentError(
                    event, f"the block at {address:#x} awaits no free afterwards"
                )
            block.state = LIVE
        elif action == SEGMENT_ALLOC:
            known = self.segments.get(address)
            if known is None or known.size != size or known.blocks:
                raise InconsistentError(
                    event, f"no empty segment of {size} bytes is at {address:#x}"
                )
            self.segment_pools[event] = known.pool
            del self.segments[address]
            del self.order[bisect_left(self.order, address)]
        elif action == SEGMENT_FREE:
            at = bisect_left(self.order, address + size)
            if at:
                other = self.segments[self.order[at - 1]]
                if other.address + other.size > address:
                    raise InconsistentError(
                        event, f"a segment is at {address:#x} after its release"
                    )
            # Nothing else is that small.
            self._add_segment(address, size, stream, pool, size == SMALL_SEGMENT)
        elif action in (SEGMENT_MAP, SEGMENT_UNMAP):
            raise Unsupported("the snapshot was taken with expandable segments")

    def _add_segment(
        self, address: int, size: int, stream: int, pool: int, small: bool
    ) -> StartSegment:
        segment = StartSegment(address, size, stream, pool, small)
        self.segments[address] = segment
        insort(self.order, address)
        return segment

    def _segment_of(self, event: int, address: int) -> StartSegment:
        at = bisect_right(self.order, address)
        segment = self.segments[self.order[at - 1]] if at else None
        if segment is None or address >= segment.address + segment.size:
            raise InconsistentError(event, f"no segment is at {address:#x}")
        return segment


def _settle(segment: StartSegment, block: StartBlock, settings: TorchSettings) -> None:
    """Decides the size of a block that was freed on the way."""
    if block.size:
        return
    rounded = settings.round(block.requested)
    gap = block.bound - block.address - rounded
    if gap < 0:
        raise InconsistentError(
            0, f"{block.requested} bytes at {block.address:#x}, rounded to {rounded}, do not fit"
        )
    if segment.small:
        block.size = rounded
    elif gap <= SMALL_LIMIT or rounded >= settings.max_split_size:
        block.size = rounded + gap
    else:
        block.size, block.open = rounded, True
