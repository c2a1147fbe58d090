# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Time on the streams of a device, and frees that wait for other streams.

The work that a stream has at some moment is seen to be done `lag_ns` after the stream gets through
it: a stream is busy until the kernels it was given end. Memory that other streams were recorded on
is free for reuse once each of them is past the point where it was freed.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, Protocol, TypeVar

from vmm.errors import Invalid

COUNTERS = (
    "device_alloc",  # memory got from the driver: one call of cudaMalloc or cuMemCreate each
    "device_free",
    "maps",  # handles mapped to an address
    "unmaps",
    "syncs",  # stream or device synchronizations
    "retries",
    "steals",
    "waits",  # events the host waited for
    "bytes_moved",
    "driver_ns",
)


class Held(Protocol):
    """What stands behind an allocation."""

    address: int
    rounded: int
    stream: int


B = TypeVar("B", bound=Held)


class StreamClock:
    """The time, and for each stream when its kernels end; nanoseconds."""

    __slots__ = ("_busy", "lag_ns", "now")

    def __init__(self, lag_ns: int) -> None:
        self.now = 0
        self.lag_ns = lag_ns
        self._busy: dict[int, int] = {}

    def kernel(self, stream: int, ns: int) -> None:
        """Work of `ns` behind what the stream has queued."""
        self._busy[stream] = max(self.now, self._busy.get(stream, 0)) + ns

    def done(self, stream: int) -> int:
        """When the host sees that the stream got through what it has queued now."""
        return max(self.now, self._busy.get(stream, 0)) + self.lag_ns

    def idle(self, stream: int) -> None:
        """The host has waited for the stream."""
        self._busy.pop(stream, None)

    def streams(self) -> list[int]:
        """The streams that were given kernels, in order."""
        return sorted(self._busy)


class StreamSafe(Generic[B]):
    """The allocations of a model by id; a subclass says how one is placed and taken back.

    ``capacity`` in bytes or None, ``reserved`` bytes held from the driver, ``live`` rounded bytes
    of the allocations. Raises `vmm.errors.Invalid`.
    """

    name = ""

    def __init__(self, capacity: int | None, lag_ns: int) -> None:
        if capacity is not None and capacity < 0:
            raise Invalid(f"capacity is {capacity}, not a number of bytes or None")
        self.capacity = capacity
        self.reserved = 0
        self.live = 0
        self.counters: dict[str, int] = dict.fromkeys(COUNTERS, 0)
        self.clock = StreamClock(lag_ns)
        self._held: dict[int, B] = {}
        self._uses: dict[int, set[int]] = {}  # id -> other streams that were recorded
        # stream -> (when it is past the free, [streams that are not, block]), in order of time.
        self._deferred: dict[int, deque[tuple[int, list[int], B]]] = {}

    # ---- What a subclass gives ----

    def _place(self, size: int, stream: int, pool: int) -> B:
        """A block for a request, with its ``rounded`` set. Raises OutOfMemory."""
        raise NotImplementedError

    def _release(self, block: B) -> None:
        """Makes a block available again."""
        raise NotImplementedError

    # ---- What a replay calls ----

    def alloc(self, id: int, size: int, stream: int = 0, pool: int = 0) -> int:
        """Places a request and returns its address. Raises OutOfMemory, `Invalid` for a used id."""
        if id in self._held:
            raise Invalid(f"id {id} is allocated already")
        if size < 0:
            raise Invalid(f"size is {size}, but a request has 0 bytes or more")
        if self._deferred:
            self._finish()
        block = self._place(size, stream, pool)
        self._held[id] = block
        self.live += block.rounded
        return block.address

    def free(self, id: int) -> None:
        """Frees; the block can be used again once every recorded stream got past this point."""
        block = self._held.pop(id, None)
        if block is None:
            raise Invalid(f"id {id} is not allocated")
        self.live -= block.rounded
        uses = self._uses.pop(id, None) if self._uses else None
        if uses is None:
            self._release(block)
            return
        left = [len(uses)]
        for stream in sorted(uses):
            queue = self._deferred.setdefault(stream, deque())
            queue.append((self.clock.done(stream), left, block))

    def record_stream(self, id: int, stream: int) -> None:
        """Another stream uses the allocation, too."""
        block = self._held.get(id)
        if block is None:
            raise Invalid(f"id {id} is not allocated")
        if stream != block.stream:
            self._uses.setdefault(id, set()).add(stream)

    def kernel(self, stream: int, ns: int) -> None:
        """Work of `ns` behind what the stream has queued."""
        self.clock.kernel(stream, ns)

    def sync(self, stream: int) -> None:
        """The host has waited for the stream: what was deferred to it is free at the next call."""
        self.clock.idle(stream)
        queue = self._deferred.get(stream)
        if queue:
            now = self.clock.now
            past = [(min(done, now), left, block) for done, left, block in queue]
            queue.clear()  # in place: a release may wait while the queue is walked
            queue.extend(past)

    def step(self) -> None:
        """A step of training ended; that changes nothing here."""

    def advance(self, t_ns: int) -> None:
        """Moves the clock to `t_ns`, or leaves it where it is beyond that."""
        if t_ns > self.clock.now:
            self.clock.now = t_ns

    def address_of(self, id: int) -> int:
        """Where an allocation is now. Raises `Invalid` for an id that is not allocated."""
        block = self._held.get(id)
        if block is None:
            raise Invalid(f"id {id} is not allocated")
        return block.address

    # ---- For subclasses ----

    def _fits(self, more: int) -> bool:
        return self.capacity is None or self.reserved + more <= self.capacity

    def _finish(self) -> None:
        """Takes back what every recorded stream is past; the host only looks."""
        now = self.clock.now
        for stream in sorted(self._deferred):
            queue = self._deferred[stream]
            while queue and queue[0][0] <= now:
                _, left, block = queue.popleft()
                left[0] -= 1
                if left[0] == 0:
                    self._release(block)
            if not queue:
                del self._deferred[stream]

    def _sync_device(self) -> None:
        """The host waits for every stream."""
        self.counters["syncs"] += 1
        for stream in {*self.clock.streams(), *self._deferred}:
            self.sync(stream)

    def _wait_deferred(self) -> None:
        """The host waits for every event that a free depends on, then takes the blocks back."""
        waiting, self._deferred = self._deferred, {}
        self.counters["waits"] += sum(len(queue) for queue in waiting.values())
        for stream in sorted(waiting):
            for _, left, block in waiting[stream]:
                left[0] -= 1
                if left[0] == 0:
                    self._release(block)
