# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Each generator against what its workload must do, over small random parameters."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vmm.sim.generators.pipeline import PipelineParameters, order
from vmm.sim.generators.registry import generate
from vmm.sim.generators.rl import pack
from vmm.sim.generators.routing import Routing
from vmm.sim.trace import Trace

TINY = {"hidden": 64, "heads": 4, "kv": 32}
SMALL: dict[str, dict[str, int]] = {
    "moe": {**TINY, "expert": 96, "sequence": 64, "microbatches": 4, "experts": 8, "top": 2},
    "varlen": {**TINY, "ffn": 96, "vocabulary": 128, "median": 64, "longest": 128},
    "lora": {**TINY, "ffn": 96, "vocabulary": 128, "median": 64, "longest": 128, "rank": 2},
    "fsdp": {**TINY, "ffn": 96, "vocabulary": 128, "sequence": 64},
    "rl": {**TINY, "ffn": 96, "vocabulary": 128, "longest": 512, "packed": 1024},
    "pipeline": {**TINY, "ffn": 96, "sequence": 64},
    "inference": {**TINY, "ffn": 96, "vocabulary": 128, "batch": 8, "longest": 600},
}
# What outlives a step; all else must be freed within it.
STAYS = {"weight", "main gradient", "optimizer"}
FLAGS = {
    "moe": ["recompute", "grouped", "side_stream", "count_sync"],
    "varlen": ["recompute"],
    "lora": ["recompute"],
    "fsdp": ["recompute", "limit_gathers"],
    "rl": ["two_streams"],
    "pipeline": ["recompute", "p2p_sync"],
    "inference": [],
}


def live_at_end(trace: Trace) -> Counter[str]:
    """Number of live allocations by tag."""
    left = trace.tag[trace.is_op("a")][trace.frees() == len(trace)]
    return Counter(trace.header["tags"][tag] for tag in left)


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_traces_keep_the_rules(name: str, data: st.DataObject) -> None:
    given_: dict[str, object] = dict(SMALL[name])
    given_["seed"] = data.draw(st.integers(0, 99))
    given_["steps"] = data.draw(st.integers(1, 3))
    given_["layers"] = data.draw(st.integers(1, 3))
    given_["queue"] = data.draw(st.sampled_from([1, 16, 1024]))
    given_ |= {flag: data.draw(st.booleans()) for flag in FLAGS[name]}
    trace = generate(name, **given_)  # which validates
    assert trace.steps == given_["steps"]
    if name == "inference":
        assert set(live_at_end(trace)) <= {"weight", "kv cache"}
    else:
        assert set(live_at_end(trace)) <= STAYS
        # Optimizer state is born once; the live bytes of all later steps end at the same height.
        ends = trace.live()[trace.is_op("m")]
        assert len(set(ends.tolist())) == 1


@settings(max_examples=20, deadline=None)
@given(
    stages=st.integers(1, 5),
    rank=st.integers(0, 4),
    chunks=st.integers(1, 4),
    groups=st.integers(1, 4),
)
def test_interleaved_order(stages: int, rank: int, chunks: int, groups: int) -> None:
    p = PipelineParameters(
        stages=stages, rank=rank % stages, chunks=chunks, microbatches=groups * stages
    )
    ran = order(p)
    forwards = [each[1:] for each in ran if not each[0]]
    backwards = [each[1:] for each in ran if each[0]]
    every = {(chunk, micro) for chunk in range(chunks) for micro in range(p.microbatches)}
    assert set(forwards) == set(backwards) == every
    assert len(forwards) == len(backwards) == len(every)
    first = {each: at for at, each in enumerate(ran)}
    assert all(first[(False, *each)] < first[(True, *each)] for each in every)
    # Section 2.2.2: never more in flight than the warm-up and one.
    flying = np.cumsum([-1 if backward else 1 for backward, _, _ in ran]).max()
    warm = (stages - p.rank - 1) * 2 + (chunks - 1) * stages
    assert flying == min(warm + 1, len(every))


def test_one_chunk_of_interleaved_order_by_hand() -> None:
    p = PipelineParameters(stages=2, rank=0, chunks=1, microbatches=4)
    text = "".join("FB"[backward] + str(micro) for backward, _, micro in order(p))
    assert text == "F0F1F2B0F3B1B2B3"


def test_robson_reaches_the_bound_of_the_paper() -> None:
    """First fit needs M (log2 n / 2 + 1) - n + 1 units when blocks are powers of two up to n."""
    trace = generate("robson", steps=8, unit=512, total=512 << 12)
    cells, places = bytearray(), {}
    for op, id, size in zip(trace.op, trace.id.tolist(), trace.bytes.tolist(), strict=True):
        if op == ord("a"):
            units = size // 512
            start = cells.find(bytes(units))
            if start < 0:
                start = len(cells.rstrip(b"\0"))
                cells.extend(bytes(start + units - len(cells)))
            cells[start : start + units] = b"\1" * units
            places[id] = start, units
        elif op == ord("f"):
            start, units = places.pop(id)
            cells[start : start + units] = bytes(units)
    assert trace.live().max() == 512 << 12
    assert len(cells) == (1 << 12) * (7 / 2 + 1) - (1 << 7) + 1


def test_pinned_growing_leaves_holes_that_the_next_wave_does_not_fit() -> None:
    trace = generate("pinned_growing", steps=4, spread=0.0, growth=1.5)
    tags = np.asarray(trace.header["tags"])[trace.tag]
    waves = np.cumsum(trace.is_op("m"))
    buffers = [set(trace.bytes[(tags == "buffer") & (waves == wave)]) for wave in range(4)]
    first = 128 << 20
    assert buffers == [{first}, {first * 3 // 2}, {first * 9 // 4}, {first * 27 // 8}]
    assert live_at_end(trace) == {"survivor": 20}
    kept = trace.bytes[tags == "survivor"]
    assert kept.min() >= 1 << 20
    assert kept.max() <= 6 << 20


def test_routing_splits_what_arrives() -> None:
    routing = Routing(np.random.default_rng(0), 2, 8, 2.0, 0.15, 0.3, 0.3)
    totals = []
    for _ in range(200):
        split = routing.split(1, 10_000)
        assert len(split) == 8
        assert min(split) >= 0
        totals.append(sum(split))
        routing.step()
    # Rounding down loses less than one token for each expert.
    assert 7_000 - 8 <= min(totals) < 7_300
    assert 12_700 < max(totals) <= 13_000
    assert abs(np.mean(totals) - 10_000) < 400


def test_side_stream_records_both_ways() -> None:
    trace = generate("moe", **SMALL["moe"], steps=1, layers=1, side_stream=True)
    tags = np.asarray(trace.header["tags"])[trace.tag]
    recorded = trace.id[trace.is_op("r")]
    assert set(trace.stream[(tags == "communication") & trace.is_op("a")]) == {0, 1}
    # What lives on one of the two streams is recorded on the other, never on its own.
    assert recorded.size
    for id, stream in zip(recorded, trace.stream[trace.is_op("r")], strict=True):
        born = np.flatnonzero(trace.is_op("a") & (trace.id == id))[0]
        assert trace.stream[born] == 1 - stream


def test_gathers_on_stream_one_come_before_their_use_and_go_late() -> None:
    trace = generate("fsdp", **SMALL["fsdp"], steps=1, layers=6, recompute=False)
    tags = np.asarray(trace.header["tags"])[trace.tag]
    gathers = np.flatnonzero((tags == "gathered weights") & trace.is_op("a"))
    assert set(trace.stream[gathers]) == {1}
    assert len(gathers) == 6 + 7
    held = np.zeros(len(trace) + 1, dtype=int)
    held[gathers] = 1
    for end in trace.frees()[np.isin(np.flatnonzero(trace.is_op("a")), gathers)]:
        held[end] -= 1
    # One in use, one ahead, two late.
    assert np.cumsum(held).max() == 4


def test_packs() -> None:
    assert pack([5, 5, 20, 1, 9, 1], int, 10) == [[5, 5], [20], [1, 9], [1]]
    assert pack([], int, 10) == []
