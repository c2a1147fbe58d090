# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random operations on an allocator of the host driver, with everything checked that can be.

A `Player` draws operations from a table of weights and keeps its own account of what is live. After
each operation the core checks its tables (`check:2`), and after each failure, and now and then, all
live numbers are read.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.vmm.soaking import stamps
from benchmarks.vmm.soaking.streams import Streams, ViolationError
from vmm.errors import Invalid, OutOfMemory, VmmError

STREAMS = (0, 1, 2, 3)
FAILURES_AT_MOST = 500  # of a mode, after which the driver works again
REASONS = ("ipc", "registered", "graph", "user")


@dataclass
class Live:
    size: int
    stream: int
    pool: int
    stamp: int
    also: set[int] = field(default_factory=set)


@dataclass
class Pool:
    released: bool = False
    asleep: bool = False
    lost: bool = False  # its content may be gone: slept without keeping it, or a failure said so


class Player:
    """Plays on `allocator`, whose page is `page` bytes and whose limit is `limit` bytes.

    `tolerant`: the driver fails on purpose, so that an operation may raise. Without it only being
    out of memory is an acceptable answer, and `plan` must foretell it.
    """

    def __init__(
        self,
        allocator: Any,
        *,
        page: int,
        limit: int,
        seed: int,
        tolerant: bool,
    ) -> None:
        self.allocator = allocator
        self.page = page
        self.limit = limit
        self.tolerant = tolerant
        self.random = random.Random(seed)
        self.live: dict[int, Live] = {}
        self.pools: dict[int, Pool] = {0: Pool()}
        self.pins: list[tuple[int, int, str]] = []
        self.streams = Streams(allocator, page)
        self.stamp = seed << 32
        self.count: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.log: list[str] = []
        self.last = ""
        allocator.clock_set(0)  # events carry the logical time
        allocator.record_start(1 << 12)

    # One operation

    def step(self) -> None:
        names, weights = zip(*WEIGHTS.items(), strict=True)
        (name,) = self.random.choices(names, weights)
        self.perform(name, getattr(self, name))

    def perform(self, name: str, operation: Callable[[], None]) -> None:
        self.count[name] += 1
        self.last = name
        failed = False
        try:
            operation()
        except VmmError as error:
            failed = True
            self._acceptable(name, error)
        self.allocator.note("")  # its time is that of the clock, which a failed call may have moved
        events, _ = self.allocator.record_read(1 << 12)
        self.streams.waits(events)
        if self.streams.open():
            self.streams.check_mapped(self._slots())
        if failed or self.count.total() % 64 == 0:
            self.verify()

    def _acceptable(self, name: str, error: VmmError) -> None:
        text = str(error)
        self.errors[f"{name}: {type(error).__name__}"] += 1
        if text.startswith("invariant"):
            raise ViolationError(f"{name}: {text}")
        if not self.tolerant and not isinstance(error, OutOfMemory):
            raise ViolationError(f"{name} raised without a failure of the driver: {text}")

    def _slots(self) -> dict[int, int]:
        return {slot.address: slot.page for slot in self.allocator.slots()}

    def _any(self) -> int | None:
        return self.random.choice(list(self.live)) if self.live else None

    # The operations. Each name is a row of WEIGHTS.

    def alloc(self) -> None:
        awake = [n for n, pool in self.pools.items() if not (pool.asleep or pool.released)]
        self._alloc(self._size(), self.random.choice(STREAMS), self.random.choice(awake))

    def _size(self) -> int:
        small = self.random.lognormvariate(8, 2)
        large = self.random.lognormvariate(11.5, 1.2)
        size = int(small if self.random.random() < 0.4 else large)
        return max(1, min(size, self.limit // 4))

    def _alloc(self, size: int, stream: int, pool: int) -> int:
        at: int = self.allocator.alloc(size, stream=stream, pool=pool)
        self.log.append(f"alloc {at:#x} {size} s{stream} p{pool}")
        for other, live in self.live.items():
            if at < other + live.size and other < at + size:
                raise ViolationError(f"{at:#x} of {size} bytes overlaps the live {other:#x}")
        events, _ = self.allocator.record_read(1 << 12)
        self.streams.waits(events)
        self.streams.check_given(at, size, stream, self._slots())
        self.stamp += 1
        stamps.write(at, size, self.page, self.stamp)
        self.live[at] = Live(size, stream, pool, self.stamp)
        return at

    def free(self) -> None:
        at = self._any()
        if at is not None:
            self._free(at)

    def _free(self, at: int) -> None:
        live = self.live[at]
        self._look(at, live)
        slots = self._slots()
        self.log.append(f"free {at:#x}")
        try:
            self.allocator.free(at)
        finally:
            del self.live[at]
            if not self.pools[live.pool].asleep:
                self.streams.freed(at, live.size, {live.stream, *live.also}, slots)
            pool = self.pools[live.pool]
            if pool.released and not any(one.pool == live.pool for one in self.live.values()):
                del self.pools[live.pool]

    def free_many(self) -> None:
        for at in self.random.sample(list(self.live), len(self.live) // 2):
            self._free(at)

    def record_stream(self) -> None:
        at = self._any()
        if at is not None:
            stream = self.random.choice(STREAMS)
            self.allocator.record_stream(at, stream)
            self.live[at].also.add(stream)

    def block_of(self) -> None:
        at = self._any()
        if at is not None:
            live = self.live[at]
            inside = at + self.random.randrange(live.size)
            base, size, requested = self.allocator.block_of(inside)
            if base != at or requested != live.size or size < live.size:
                raise ViolationError(
                    f"block_of({inside:#x}) is {base:#x} of {size} for {requested}"
                )

    def kernel(self) -> None:
        stream, ns = self.random.choice(STREAMS), self.random.randrange(1, 5000)
        self.allocator.clock_kernel(stream, ns)
        self.log.append(f"kernel s{stream} {ns}")
        self.streams.kernel(stream, ns)

    def clock(self) -> None:
        now = self.streams.now + self.random.randrange(3000)
        self.allocator.clock_set(now)
        self.log.append(f"clock {now}")
        self.streams.set(now)

    def compact(self) -> None:
        target = self.random.choice((0, 0, self.page, self.limit // 8))
        release, sync = self.random.random() < 0.3, self.random.random() < 0.5
        self.log.append(f"compact {target} {release} {sync}")
        self.allocator.compact(target, release, sync)

    def trim(self) -> None:
        nbytes = self.random.choice((None, self.page, 3 * self.page + 1))
        self.log.append(f"trim {nbytes}")
        self.allocator.trim(nbytes)

    def mark_step(self) -> None:
        self.allocator.mark_step()

    def set_limit(self) -> None:
        pages = self.limit // self.page
        limit = self.page * self.random.randrange(pages // 2, pages + 1)
        self.log.append(f"set_limit {limit}")
        self.allocator.set_limit(limit)

    def plan(self) -> None:
        """What `plan` foretells comes true, as long as the driver does not fail."""
        stream = self.random.choice(STREAMS)
        sizes = [self._size() for _ in range(self.random.randrange(1, 5))]
        answer = self.allocator.plan(sizes, stream=stream)
        self.log.append(f"plan {sizes} s{stream}: {answer}")
        if self.random.random() < 0.5:
            self.allocator.prefetch(sizes, stream=stream)
        given = []
        try:
            given += [self._alloc(size, stream, 0) for size in sizes]
        except OutOfMemory:
            if answer == "fits" and not self.tolerant:
                self.errors["plan said that it fits"] += 1
            raise
        finally:
            for at in given:
                self._free(at)

    def pool_create(self) -> None:
        if len(self.pools) < 5:
            cap = self.random.choice((0, 0, 8 * self.page))
            shared = self.random.random() < 0.5
            pool = self.allocator.pool_create("pool", cap=cap, shared_pages=shared)
            self.log.append(f"pool_create {pool} cap {cap} shared {shared}")
            self.pools[pool] = Pool()

    def pool_release(self) -> None:
        open_ = [n for n, pool in self.pools.items() if n and not pool.released]
        if open_:
            pool = self.random.choice(open_)
            self.log.append(f"pool_release {pool}")
            try:
                self.allocator.pool_release(pool)
            finally:
                self.pools[pool].released = True
                if not any(live.pool == pool for live in self.live.values()):
                    del self.pools[pool]

    def pool_sleep(self) -> None:
        awake = [n for n, pool in self.pools.items() if n and not pool.asleep and not pool.released]
        if not awake:
            return
        pool, keep = self.random.choice(awake), self.random.random() < 0.7
        self.log.append(f"pool_sleep {pool} keep {keep}")
        try:
            self.allocator.pool_sleep(pool, keep)
        except Invalid as error:
            if "pinned" not in str(error):
                raise
        except VmmError as error:
            self.pools[pool].lost = "lost" in str(error)
            self.pools[pool].asleep = "it is asleep now" in str(error)
            raise
        else:
            self.pools[pool].asleep = True
            self.pools[pool].lost |= not keep

    def pool_wake(self) -> None:
        asleep = [n for n, pool in self.pools.items() if pool.asleep]
        if not asleep:
            return
        number = self.random.choice(asleep)
        pool = self.pools[number]
        self.log.append(f"pool_wake {number}")
        try:
            self.allocator.pool_wake(number)
        except VmmError as error:
            pool.lost |= not isinstance(error, OutOfMemory)
            raise
        finally:
            arenas = [arena for arena in self.allocator.arenas() if arena.pool == number]
            pool.asleep = any(arena.asleep for arena in arenas)
            if pool.lost and not pool.asleep:
                for at, live in self.live.items():
                    if live.pool == number:
                        stamps.write(at, live.size, self.page, live.stamp)
                pool.lost = False

    def pin(self) -> None:
        at = self._any()
        if at is not None and not self.pools[self.live[at].pool].asleep:
            reason = self.random.choice(REASONS)
            self.allocator.pin(at, self.live[at].size, reason)
            self.log.append(f"pin {at:#x} {self.live[at].size} {reason}")
            self.pins.append((at, self.live[at].size, reason))

    def unpin(self) -> None:
        if self.pins:
            at, size, reason = self.pins.pop(self.random.randrange(len(self.pins)))
            self.log.append(f"unpin {at:#x} {size} {reason}")
            try:
                self.allocator.unpin(at, size, reason)
            except Invalid:  # the pool that it lay in is gone, or lost its graph pins
                self.count["unpin of what is gone"] += 1

    def oom_callback(self) -> None:
        """A request for more than there can be; a callback frees something meanwhile."""
        freed = []

        def give(device: int, size: int) -> bool:
            at = self._any()
            if at is None or len(freed) > 2:
                return False
            freed.append(at)
            self._free(at)
            return True

        self.allocator.on_oom(give)
        try:
            at = self._alloc(self.limit * 2, 0, 0)
            raise ViolationError(f"{at:#x}: twice the limit was given")
        except OutOfMemory:
            pass
        finally:
            self.allocator.remove_on_oom(give)

    # Looking

    def _look(self, at: int, live: Live) -> None:
        pool = self.pools[live.pool]
        if pool.asleep or pool.lost:
            return
        word = stamps.wrong(at, live.size, self.page, live.stamp)
        if word is not None:
            raise ViolationError(
                f"{self.last}: the word at {word:#x} of the live {at:#x} has changed"
            )

    def verify(self) -> None:
        """Tables, contents and sums."""
        self.allocator.check()
        for at, live in self.live.items():
            self._look(at, live)
        stats = self.allocator.stats()
        requested = sum(live.size for live in self.live.values())
        found = (stats["allocation.all.current"], stats["requested_bytes.all.current"])
        if found != (len(self.live), requested):
            raise ViolationError(
                f"{found} live blocks and bytes, not {(len(self.live), requested)}"
            )
        pages = sum(stats[f"pages.{state}"] for state in ("mapped", "free", "quarantined"))
        if stats["pages.created"] != pages:
            raise ViolationError(
                f"{stats['pages.created']} pages were created, but {pages} are there"
            )
        if stats["reserved_bytes.all.current"] > self.limit:
            raise ViolationError(f"{stats['reserved_bytes.all.current']} bytes are above the limit")

    def finish(self, may_fail: bool = False) -> None:
        """Frees all that is live. Then half of what is not put aside can be had again."""
        for pool in [number for number, pool in self.pools.items() if pool.asleep]:
            self.perform("wake at the end", lambda pool=pool: self._wake_at_end(pool))
        for at in list(self.live):
            self.perform("free at the end", lambda at=at: self._free(at))
        while self.pools.keys() - {0}:
            self.perform("release at the end", self.pool_release)
        self.verify()
        if may_fail:
            return
        for try_ in range(FAILURES_AT_MOST):
            try:
                self.allocator.set_limit(self.limit)
                self.allocator.compact(release=True)
                stats = self.allocator.stats()
                aside = stats["pages.quarantined"] + stats["pages.pinned"]
                at = self._alloc(max(1, (self.limit - aside * self.page) // 2), 0, 0)
            except VmmError as error:
                self.verify()
                if try_ == FAILURES_AT_MOST - 1:
                    raise ViolationError(f"no success after the failures: {error}") from error
            else:
                self._free(at)
                return

    def _wake_at_end(self, pool: int) -> None:
        self.allocator.pool_wake(pool)
        self.pools[pool].asleep = False
        self.pools[pool].lost = True


WEIGHTS = {
    "alloc": 40,
    "free": 34,
    "kernel": 20,
    "clock": 10,
    "record_stream": 8,
    "block_of": 2,
    "plan": 2,
    "mark_step": 2,
    "trim": 2,
    "compact": 1.5,
    "free_many": 0.4,
    "set_limit": 0.6,
    "pool_create": 1,
    "pool_release": 0.5,
    "pool_sleep": 0.8,
    "pool_wake": 1.5,
    "pin": 1,
    "unpin": 1,
    "oom_callback": 0.3,
}
