# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One pass of a recording through the model of torch's allocator."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from vmm.sim import snapshot as recorded
from vmm.sim.models.torch_blocks import FREE, LIVE, PENDING, Block, TorchBlocks
from vmm.sim.models.torch_settings import MIN_BLOCK, SMALL_LIMIT, TorchSettings
from vmm.sim.snapshot import (
    ALLOC,
    FREE_COMPLETED,
    FREE_REQUESTED,
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    Snapshot,
)
from vmm.sim.starting_layout import StartingLayout, StartSegment

_STATES = {recorded.FREE: FREE, recorded.LIVE: LIVE, recorded.PENDING: PENDING}


class _LostError(Exception):
    """The model is so far from the recording that it cannot follow it any further."""


class ExactReplay:
    """Follows a recording; where the model would do otherwise it is made to do what was recorded.

    `longer` maps addresses of blocks at the start to bytes that they have beyond what the layout
    says. A pass adds to it where that explains what was recorded; the caller then starts again.
    ``mismatches`` are (event, what). ``foreseen``: bytes of the segments that the model wanted,
    less those that the recording has.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        settings: TorchSettings,
        layout: StartingLayout,
        longer: dict[int, int],
    ) -> None:
        self.snapshot, self.settings, self.layout = snapshot, settings, layout
        self.longer = longer
        self.model = TorchBlocks(settings)
        self.mismatches: list[tuple[int, str]] = []
        self.allocs = self.segment_allocs = self.foreseen = 0
        self.releases = {"whole": 0, "part": 0}
        self._used: dict[int, Block] = {}
        self._open: set[Block] = set()
        self._missed: set[int] = set()  # allocations that found nothing before a release
        self._starts: list[int] = []  # addresses of the segments, ascending
        columns = (snapshot.action, snapshot.addr, snapshot.size, snapshot.stream)
        self._rows = list(zip(*(column.tolist() for column in columns), strict=True))
        for segment in layout.segments:
            self._load(segment)
        self._before_release = self._searches_before_release()

    def run(self) -> None:
        event = 0
        try:
            for event, (action, address, size, _) in enumerate(self._rows):
                if event in self._before_release:
                    self._search_early(self._before_release[event])
                if action == ALLOC:
                    self._alloc(event)
                elif action == FREE_REQUESTED:
                    self.model.request_free(self._block(address))
                elif action == FREE_COMPLETED:
                    block = self._block(address)
                    self._open.discard(block)
                    del self._used[address]
                    self.model.complete_free(block)
                elif action == SEGMENT_ALLOC:
                    self.segment_allocs += 1
                elif action == SEGMENT_FREE:
                    self._segment_free(event, address, size)
        except _LostError as error:
            self.mismatches.append((event, str(error)))

    def same_layout(self) -> bool:
        """Whether the blocks are now where the snapshot has them."""
        have = [(block.address, block.size, block.state) for block in self.model.blocks()]
        return have == [
            (block["address"], block["size"], _STATES[block["state"]])
            for segment in self.snapshot.segments
            for block in segment["blocks"]
        ]

    # ---- Segments ----

    def _load(self, segment: StartSegment) -> None:
        parts: list[tuple[int, int, int]] = []
        end = segment.address
        for address in segment.order:
            start = segment.blocks[address]
            if address > end:
                parts.append((address - end, FREE, 0))
            size = start.size + (self.longer.get(address, 0) if start.open else 0)
            parts.append((size, _STATES[start.state], start.requested))
            end = address + size
        if segment.address + segment.size > end:
            parts.append((segment.address + segment.size - end, FREE, 0))
        pool = self.model.pool_of(1 if segment.small else SMALL_LIMIT + 1, segment.pool)
        first = self.model.add_segment(segment.address, segment.size, segment.stream, pool)
        insort(self._starts, segment.address)
        for block in self.model.adopt(first, parts):
            if block.state != FREE:
                self._used[block.address] = block
                if segment.blocks[block.address].open:
                    self._open.add(block)

    def _segment_free(self, event: int, address: int, size: int) -> None:
        if event == 0 or self._rows[event - 1][0] != SEGMENT_FREE:
            self._classify(event)
        block = self.model.segments.get(address)
        if block is None or block.state != FREE or block.next is not None or block.size != size:
            raise _LostError(
                f"{size} bytes at {address:#x} are released, but are no cached segment"
            )
        self.model.release_segment(block)
        del self._starts[bisect_left(self._starts, address)]

    def _classify(self, event: int) -> None:
        """Was the whole cache given back from this event on, or a part of it?"""
        end = event
        while end < len(self._rows) and self._rows[end][0] == SEGMENT_FREE:
            end += 1
        released = {row[1] for row in self._rows[event:end]}
        whole = all(block.address in released for block in self.model.cached_segments())
        self.releases["whole" if whole else "part"] += 1

    # ---- Allocations ----

    def _alloc(self, event: int) -> None:
        self.allocs += 1
        _, address, size, _ = self._rows[event]
        rounded = self.settings.round(size)
        if event and self._rows[event - 1][:2] == (SEGMENT_ALLOC, address):
            block = self._from_driver(event, rounded, self.layout.segment_pools[event - 1])
        else:
            at = bisect_right(self._starts, address)
            if not at:
                raise _LostError(f"an allocation at {address:#x}, where no segment is")
            pool = self.model.segments[self._starts[at - 1]].pool.number
            block = self._from_cache(event, rounded, pool)
        self.model.place(block, rounded, size)
        self._used[address] = block

    def _from_cache(self, event: int, rounded: int, pool: int) -> Block:
        _, address, _, stream = self._rows[event]
        found = self._find(rounded, stream, pool, address)
        if found is not None and found.address == address:
            self.model.remove(found)
            return found
        if event == 0 and found is None:
            # The event that made its segment may be the last one that was cut off.
            first = self.model.segments[self._starts[bisect_right(self._starts, address) - 1]]
            need = self.settings.segment_size(rounded)
            if (first.address, first.size, first.next) == (address, need, None):
                self.model.remove(first)
                return first
        if found is None:
            need = self.settings.segment_size(rounded)
            self.foreseen += need
            self._differs(event, f"a new segment of {need} bytes")
        else:
            self._differs(event, f"the block of {found.size} bytes at {found.address:#x}")
        return self._carve(address, rounded)

    def _from_driver(self, event: int, rounded: int, pool: int) -> Block:
        _, address, size, stream = self._rows[event - 1]
        found = self._find(rounded, stream, pool, None)
        need = self.settings.segment_size(rounded)
        if found is not None and event not in self._missed:
            self.foreseen -= size
            self._differs(event, f"the block of {found.size} bytes at {found.address:#x}")
        elif need != size:
            self.foreseen += need - size
            self._differs(event, f"a new segment of {need} bytes")
        insort(self._starts, address)
        return self.model.add_segment(address, size, stream, self.model.pool_of(rounded, pool))

    def _find(self, rounded: int, stream: int, pool: int, address: int | None) -> Block | None:
        """What the model would take; ends of blocks from before the start give way to `address`."""
        while True:
            found = self.model.find(rounded, stream, pool)
            if found is None or found.address == address or not self._lengthen(found, rounded):
                return found

    def _lengthen(self, free: Block, rounded: int) -> bool:
        """Makes a free block too small for a request, where the block before it may be longer."""
        owner = free.previous
        extra = free.size - rounded + MIN_BLOCK
        if owner not in self._open or owner is None or free.size - extra <= SMALL_LIMIT:
            return False
        if owner.size - owner.rounded + extra > SMALL_LIMIT:
            return False
        self.longer[owner.address] = self.longer.get(owner.address, 0) + extra
        self.model.remove(free)
        owner.size += extra
        free.address += extra
        free.size -= extra
        self.model.insert(free)
        return True

    def _searches_before_release(self) -> dict[int, int]:
        """Events that give memory back to make room for an allocation -> that allocation.

        The allocator searched before them, and does not search again: what a wait for other streams
        made available on the way is not looked at.
        """
        result = {}
        for event in range(2, len(self._rows)):
            if (
                self._rows[event][0] != ALLOC
                or self._rows[event - 1][0] != SEGMENT_ALLOC
                or self._rows[event - 2][0] != SEGMENT_FREE
            ):
                continue
            at = event - 2
            while at >= 0 and (self._rows[at][0] == SEGMENT_FREE or self._was_waited_for(at)):
                result[at] = event
                at -= 1
        return result

    def _was_waited_for(self, event: int) -> bool:
        """Whether this completes a free that another stream had held up."""
        action, address = self._rows[event][:2]
        return action == FREE_COMPLETED and (
            event == 0 or self._rows[event - 1][:2] != (FREE_REQUESTED, address)
        )

    def _search_early(self, event: int) -> None:
        size, stream = self._rows[event][2:]
        pool = self.layout.segment_pools.get(event - 1, 0)
        if self.model.find(self.settings.round(size), stream, pool) is None:
            self._missed.add(event)

    # ---- After a difference ----

    def _differs(self, event: int, choice: str) -> None:
        address, size = self._rows[event][1:3]
        self.mismatches.append(
            (event, f"{size} bytes were placed at {address:#x}, but the model takes {choice}")
        )

    def _carve(self, address: int, rounded: int) -> Block:
        """Takes the recorded place out of the free block that is there."""
        at = bisect_right(self._starts, address)
        block: Block | None = self.model.segments[self._starts[at - 1]]
        while block is not None and block.address + block.size <= address:
            block = block.next
        if block is None or block.state != FREE or block.address + block.size < address + rounded:
            raise _LostError(f"{rounded} bytes at {address:#x} are not free")
        self.model.remove(block)
        if block.address == address:
            return block
        self.model.cut(block, address - block.address)
        rest = block.next
        assert rest is not None
        self.model.remove(rest)
        self.model.insert(block)
        return rest

    def _block(self, address: int) -> Block:
        block = self._used.get(address)
        if block is None:
            raise _LostError(f"a free at {address:#x}, where nothing is allocated")
        return block
