# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Any sequence of calls on the null driver agrees with a map of bytes in plain Python."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from tests.vmm.soak.byte_map import ByteMap
from vmm.allocator import Allocator
from vmm.errors import Invalid, OutOfMemory

PAGE = 4096
LIMIT = 64 * PAGE

sizes = st.one_of(st.integers(1, 3 * PAGE), st.integers(1, LIMIT // 3))
streams = st.integers(0, 2)


class AgainstAByteMap(RuleBasedStateMachine):
    blocks = Bundle("blocks")
    pools = Bundle("pools")

    @initialize(
        policy=st.sampled_from(["create_first", "steal_first"]),
        cross_stream=st.sampled_from(["never", "wait", "wait_above_soft"]),
        alias=st.booleans(),
        align_large=st.sampled_from([0, 2 * PAGE]),
        split_min=st.sampled_from([512, 2048]),
    )
    def start(self, **keys) -> None:
        self.allocator = Allocator(
            driver="null",
            granularity=PAGE,
            page=PAGE,
            small_max=PAGE // 2,
            grow=4 * PAGE,
            limit=LIMIT,
            device_bytes=4 * LIMIT,
            checking=True,
            check=2,
            **keys,
        )
        self.model = ByteMap()
        self.asleep: set[int] = set()
        self.align_large = keys["align_large"]

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.close()

    @rule(target=blocks, size=sizes, stream=streams)
    def alloc(self, size: int, stream: int):
        return self.request(size, stream, 0)

    @rule(target=blocks, size=sizes, stream=streams, pool=pools)
    def alloc_in_pool(self, size: int, stream: int, pool: int):
        try:
            return self.request(size, stream, pool)
        except Invalid:  # it is asleep: nothing was given
            assert pool in self.asleep
            return multiple()

    def request(self, size: int, stream: int, pool: int):
        try:
            at = self.allocator.alloc(size, stream=stream, pool=pool)
        except OutOfMemory:
            return multiple()
        if self.align_large and ByteMap.rounded(size) >= self.align_large:
            assert at % PAGE == 0
        self.model.put(at, size, pool)
        return at

    @rule(at=consumes(blocks))
    def free(self, at: int) -> None:
        self.allocator.free(at)
        self.model.take(at)

    @rule(at=blocks, offset=st.integers(0, LIMIT))
    def block_of(self, at: int, offset: int) -> None:
        block = self.model.live[at]
        base, size, requested = self.allocator.block_of(at + offset % block.size)
        assert (base, requested) == (at, block.size)
        assert size >= ByteMap.rounded(block.size)

    @rule(at=blocks, stream=streams)
    def record_stream(self, at: int, stream: int) -> None:
        self.allocator.record_stream(at, stream)

    @rule(stream=streams, ns=st.integers(1, 1000))
    def kernel(self, stream: int, ns: int) -> None:
        self.allocator.clock_kernel(stream, ns)

    @rule(at=blocks)
    def pin_and_unpin(self, at: int) -> None:
        if self.model.live[at].pool not in self.asleep:
            self.allocator.pin(at, self.model.live[at].size)
            self.allocator.unpin(at, self.model.live[at].size)

    @rule(release=st.booleans(), sync=st.booleans(), goal=st.sampled_from([0, 8 * PAGE]))
    def compact(self, release: bool, sync: bool, goal: int) -> None:
        try:
            self.allocator.compact(goal, release, sync)
        except OutOfMemory:
            assert goal or not release

    @rule(nbytes=st.one_of(st.none(), st.integers(0, LIMIT)))
    def trim(self, nbytes: int | None) -> None:
        before = self.allocator.stats()["reserved_bytes.all.current"]
        released = self.allocator.trim(nbytes)
        assert self.allocator.stats()["reserved_bytes.all.current"] == before - released
        if nbytes is not None:
            assert released <= -(-nbytes // PAGE) * PAGE

    @rule()
    def mark_step(self) -> None:
        self.allocator.mark_step()

    @rule(wanted=st.lists(sizes, max_size=4), stream=streams)
    def plan_and_prefetch(self, wanted: list[int], stream: int) -> None:
        before = [(block.address, block.size, block.state) for block in self.allocator.blocks()]
        self.allocator.plan(wanted, stream=stream)
        after = [(block.address, block.size, block.state) for block in self.allocator.blocks()]
        assert after == before
        try:
            self.allocator.prefetch(wanted, stream=stream)
        except OutOfMemory:
            assert sum(map(ByteMap.rounded, wanted)) > 0

    @rule(target=pools, shared=st.booleans(), cap=st.sampled_from([0, 8 * PAGE]))
    def pool_create(self, shared: bool, cap: int) -> int:
        return self.allocator.pool_create("pool", cap=cap, shared_pages=shared)

    @rule(pool=pools, keep=st.booleans())
    def pool_sleep(self, pool: int, keep: bool) -> None:
        if pool in self.asleep:
            return
        before = self.allocator.stats()["reserved_bytes.all.current"]
        released = self.allocator.pool_sleep(pool, keep)
        assert self.allocator.stats()["reserved_bytes.all.current"] == before - released
        self.asleep.add(pool)

    @rule(pool=pools)
    def pool_wake(self, pool: int) -> None:
        if pool in self.asleep:
            try:
                self.allocator.pool_wake(pool)
            except OutOfMemory:
                return
            self.asleep.discard(pool)

    @invariant()
    def sums_agree(self) -> None:
        if not hasattr(self, "allocator"):
            return
        stats = self.allocator.stats()
        assert stats["allocation.all.current"] == len(self.model.live)
        assert stats["requested_bytes.all.current"] == self.model.requested
        assert stats["allocated_bytes.all.current"] >= self.model.allocated
        assert stats["reserved_bytes.all.current"] <= LIMIT
        pages = sum(stats[f"pages.{state}"] for state in ("mapped", "free", "quarantined"))
        assert stats["pages.created"] == pages
        assert stats["pages.quarantined"] == 0


TestAgainstAByteMap = AgainstAByteMap.TestCase
TestAgainstAByteMap.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, derandomize=True
)
