# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What holds after any sequence of calls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vmm.sim.models.base import OutOfMemory
from vmm.sim.models.torch_blocks import FREE, LIVE
from vmm.sim.models.torch_default import TorchDefault

M = 1 << 20

sizes = st.one_of(
    st.integers(1, 5000),
    st.integers(1, 3 * M),
    st.sampled_from([M, M + 1, 10 * M - 512, 10 * M, 11 * M, 33 * M]),
)
call = st.one_of(
    st.tuples(st.just("alloc"), sizes, st.integers(0, 2)),
    st.tuples(st.just("alloc"), sizes, st.integers(0, 2)),
    st.tuples(st.just("free"), st.integers(0, 99), st.just(0)),
    st.tuples(st.just("use"), st.integers(0, 99), st.integers(0, 2)),
    st.tuples(st.just("kernel"), st.integers(0, 50), st.integers(0, 2)),
    st.tuples(st.just("empty"), st.just(0), st.just(0)),
)
options = st.sampled_from(
    [
        {},
        {"max_split_size_mb": 25},
        {"roundup_power2_divisions": 4},
        {"garbage_collection_threshold": 0.5},
    ]
)


def check(model: TorchDefault, live: dict[int, tuple[int, int]]) -> None:
    """Blocks tile their segments, free neighbors are merged, and each free block is findable."""
    end, last, reserved = -1, None, 0
    free = 0
    for block in model.blocks():
        if block.previous is None:
            assert block.address >= end
            last = None
        else:
            assert block.previous is last
            assert block.address == end
        assert block.size >= 512
        assert block.size % 512 == 0
        if last is not None and last.state == FREE:
            assert block.state != FREE
        free += block.state == FREE
        end, last, reserved = block.address + block.size, block, reserved + block.size
    assert reserved == model.reserved
    assert free == sum(
        len(keys) for p in model._pools.values() for q in p for keys in q.lists.values()
    )
    used = {block.address: block for block in model.blocks() if block.state == LIVE}
    assert used.keys() == {address for address, _ in live.values()}
    for address, size in live.values():
        assert used[address].requested == size
        assert used[address].size >= size
    assert model.live == sum(model.settings.round(size) for _, size in live.values())


@settings(max_examples=150, deadline=None)
@given(calls=st.lists(call, max_size=60), chosen=options, capacity=st.sampled_from([None, 70 * M]))
def test_blocks_tile_merge_and_end_as_they_began(
    calls: list[tuple[str, int, int]], chosen: dict[str, object], capacity: int | None
) -> None:
    model = TorchDefault(capacity, **chosen)
    live: dict[int, tuple[int, int]] = {}
    for number, (name, value, stream) in enumerate(calls):
        model.advance(number * 10)
        ids = sorted(live)
        if name == "alloc":
            try:
                live[number] = (model.alloc(number, value, stream), value)
            except OutOfMemory:
                assert capacity is not None
        elif name == "kernel":
            model.kernel(stream, value)
        elif name == "empty":
            model.empty_cache()
        elif ids and name == "free":
            model.free(ids[value % len(ids)])
            del live[ids[value % len(ids)]]
        elif ids:
            model.record_stream(ids[value % len(ids)], stream)
        check(model, live)
        if capacity is not None:
            assert model.reserved <= capacity
    for id in list(live):
        model.free(id)
    model.empty_cache()
    assert (model.reserved, model.live, list(model.blocks())) == (0, 0, [])
