# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The plan as integers: every element of every target is copied once and from the right place."""

from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.boxes import shard_regions
from flexckpt.errors import CheckpointError, LayoutError
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.pieces import Variable, whole
from flexckpt.plan.copies import Copy
from flexckpt.plan.cover import Cover
from flexckpt.plan.ownership import Held, assign_writers
from flexckpt.plan.planner import Plan, make_plan
from flexckpt.plan.readers import balanced, constrained
from flexckpt.plan.targets import Target
from tests.flexckpt.core.parts import FULL_SHAPES, SHAPES, Part, partitions

QUICK = settings(max_examples=80, deadline=None)
Array = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def stored_of(parts: list[Part], files: int = 1) -> list[Stored]:
    return [Stored(*part, file=n % files, position=1000 * n) for n, part in enumerate(parts)]


def index_of(entries: dict[str, Entry]) -> SourceIndex:
    by_state = {(e.key, e.state): e for e in entries.values()}
    return SourceIndex("test", Path("test"), [Path("f")], by_state)


def numbered(shape: tuple[int, ...], start: int = 0) -> Array:
    """A tensor whose elements say where they belong."""
    return np.arange(start, start + prod(shape), dtype=np.int64).reshape(shape)


def taken(values: Array, part: Part) -> Array:
    """The elements of a part in the order in which they lie in memory."""
    box = values[tuple(slice(o, o + n) for o, n in zip(part.offset, part.shape, strict=True))]
    flat = box.reshape(-1)
    return flat if part.flat_range is None else flat[slice(*part.flat_range)]


def places(base: int, strides: tuple[int, ...], extents: tuple[int, ...]) -> Array:
    """The places of a strided view, in C order of its extents."""
    steps = [np.arange(n) * k for n, k in zip(extents, strides, strict=True)]
    return base + sum(np.ix_(*steps), np.zeros(extents, dtype=np.int64)).reshape(-1)


def carry_out(plan: Plan, memory: dict[Stored, Array], targets: list[Array]) -> list[Counter[int]]:
    """Carry out a plan on arrays; how often each place of each target was written."""
    written: list[Counter[int]] = [Counter() for _ in targets]
    for copy in plan.copies:
        source = memory[plan.shards[copy.shard][0]]
        at = places(copy.dst_base, copy.dst_strides, copy.extents)
        targets[copy.target][at] = source[places(copy.src_base, copy.src_strides, copy.extents)]
        written[copy.target].update(at.tolist())
    return written


@st.composite
def programs(draw: st.DrawFn, shape: tuple[int, ...]) -> Variable:
    """A variable that is two sources side by side, with turned axes."""
    axis = draw(st.integers(0, len(shape) - 1)) if shape else 0
    pieces = whole("a", shape)
    full = shape
    if shape:
        shift = shape[axis]
        full = (*shape[:axis], 2 * shift, *shape[axis + 1 :])
        for piece in whole("b", shape):
            pieces.append(
                piece._replace(dst=tuple(shift if k == axis else 0 for k in range(len(shape))))
            )
    turn = draw(st.permutations(range(len(shape))))
    moved = []
    for piece in pieces:
        dims = tuple(d._replace(dst_axis=turn.index(d.dst_axis)) for d in piece.dims)
        moved.append(piece._replace(dst=tuple(piece.dst[k] for k in turn), dims=dims))
    return Variable(tuple(full[k] for k in turn), "int64", moved)


def reference(variable: Variable, sources: dict[str, Array]) -> Array:
    """The values of a variable, element by element."""
    out = np.full(variable.shape, -1, dtype=np.int64)
    for piece in variable.pieces:
        assert piece.source is not None
        for steps in np.ndindex(*(d.extent for d in piece.dims)):
            src, dst = list(piece.src), list(piece.dst)
            for d, n in zip(piece.dims, steps, strict=True):
                src[d.src_axis] += n * d.src_step
                dst[d.dst_axis] += n * d.dst_step
            out[tuple(dst)] = sources[piece.source][tuple(src)]
    return out


@QUICK
@given(st.data())
def test_every_element_is_copied_once_from_its_place(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    values = {"a": numbered(shape), "b": numbered(shape, 10_000)}
    entries, memory = {}, {}
    for name, array in values.items():
        parts = data.draw(partitions(shape))
        parts += data.draw(st.lists(st.sampled_from(parts), max_size=2))
        if data.draw(st.booleans()):
            parts += data.draw(partitions(shape))  # overlap the others
        rows = [s._replace(position=len(memory) + n) for n, s in enumerate(stored_of(parts))]
        memory.update({s: taken(array, p) for s, p in zip(rows, parts, strict=True)})
        entries[name] = Entry(name, "weight", shape, torch.int64, rows)
    variable = data.draw(programs(shape))
    want = reference(variable, values)
    parts = data.draw(partitions(variable.shape))
    base = data.draw(st.integers(0, 3))
    targets = [
        Target("v", "weight", variable.shape, "int64", tuple(shard_regions(*part, base=base)))
        for part in parts
    ]
    plan = make_plan(index_of(entries), targets, {"v": variable})
    results = [np.full(base + t.numel, -7, dtype=np.int64) for t in targets]
    written = carry_out(plan, memory, results)
    for part, array, counts in zip(parts, results, written, strict=True):
        assert np.array_equal(array[base:], taken(want, part))
        assert not base or set(array[:base]) == {-7}
        assert counts == Counter(range(base, len(array)))
    assert plan.ends == sorted(plan.ends)
    for number in range(len(targets)):
        assert {c.target for c in plan.of_target(number)} <= {number}


def grid(shape: tuple[int, int], rows: int, columns: int) -> list[Part]:
    """Uneven blocks of a matrix, as tensor parallel and data parallel ranks hold them."""
    parts = []
    for r in range(rows):
        for c in range(columns):
            low = (
                min(r * -(-shape[0] // rows), shape[0]),
                min(c * -(-shape[1] // columns), shape[1]),
            )
            high = (
                min((r + 1) * -(-shape[0] // rows), shape[0]),
                min((c + 1) * -(-shape[1] // columns), shape[1]),
            )
            parts.append(Part(low, (high[0] - low[0], high[1] - low[1])))
    return parts


@pytest.mark.parametrize(
    ("before", "after"), [((8, 8), (64, 1)), ((1, 64), (8, 4)), ((7, 9), (3, 5))]
)
def test_sixty_four_ranks(before: tuple[int, int], after: tuple[int, int]) -> None:
    shape = (130, 67)
    source = grid(shape, *before)
    entry = Entry("w", "weight", shape, torch.int64, stored_of(source, files=8))
    array = numbered(shape)
    memory = {s: taken(array, p) for s, p in zip(entry.shards, source, strict=True)}
    variables = {"w": Variable(shape, "int64", whole("w", shape))}
    index = index_of({"w": entry})
    moved = 0
    for part in grid(shape, *after):
        flat = prod(part.shape)
        for rank_part in (
            part._replace(flat_range=(0, flat // 3)),
            part._replace(flat_range=(flat // 3, flat)),
        ):
            target = Target("w", "weight", shape, "int64", tuple(shard_regions(*rank_part)))
            plan = make_plan(index, [target], variables)
            result = np.full(target.numel, -7, dtype=np.int64)
            (counts,) = carry_out(plan, memory, [result])
            assert np.array_equal(result, taken(array, rank_part))
            assert set(counts.values()) <= {1}
            moved += sum(c.numel for c in plan.copies)
            assert plan == make_plan(index, [target], variables)
    assert moved == prod(shape)


@QUICK
@given(st.data())
def test_cover_of_overlapping_shards_is_disjoint_and_whole(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    parts = data.draw(partitions(shape)) + data.draw(partitions(shape))
    parts = data.draw(st.permutations(parts))
    array = numbered(shape)
    rows = stored_of(parts)
    memory = {s: taken(array, p) for s, p in zip(rows, parts, strict=True)}
    seen: list[int] = []
    for region, stored in Cover(Entry("w", "weight", shape, torch.int64, rows)).parts:
        inside = tuple(slice(*ab) for ab in zip(*region.box, strict=True))
        at = places(region.base, region.strides, region.box.shape)
        assert np.array_equal(memory[stored][at], array[inside].reshape(-1))
        seen += array[inside].reshape(-1).tolist()
    assert sorted(seen) == list(range(prod(shape)))


@QUICK
@given(st.data())
def test_missing_elements_are_told(data: st.DataObject) -> None:
    shape = data.draw(FULL_SHAPES)
    parts = data.draw(partitions(shape))
    sizes = [len(taken(numbered(shape), p)) for p in parts]
    lost = data.draw(st.sampled_from([n for n, size in enumerate(sizes) if size]))
    rows = stored_of([p for n, p in enumerate(parts) if n != lost])
    index = index_of({"w": Entry("w", "weight", shape, torch.int64, rows)})
    regions = tuple(shard_regions((0,) * len(shape), shape))
    target = Target("w", "weight", shape, "int64", regions)
    left = prod(shape) - sizes[lost]
    with pytest.raises(CheckpointError, match=rf"CKP201.*'w'.* {left} of the {prod(shape)} "):
        make_plan(index, [target], {"w": Variable(shape, "int64", whole("w", shape))})


def plan_of(entries: dict[str, Entry], state: str, dtype: str, *, cast: bool = False) -> Plan:
    pieces = whole("a", (2, 3))
    target = Target("v", state, (2, 3), dtype, tuple(shard_regions((0, 0), (2, 3))))
    return make_plan(index_of(entries), [target], {"v": Variable((2, 3), dtype, pieces)}, cast=cast)


def entry(key: str, state: str, dtype: torch.dtype, shape: tuple[int, ...] = (2, 3)) -> Entry:
    return Entry(key, state, shape, dtype, stored_of([Part((0,) * len(shape), shape)]))


def test_dtypes_must_agree_unless_a_state_stands_in() -> None:
    moment = {"m": entry("a", "exp_avg", torch.bfloat16)}
    with pytest.raises(LayoutError, match=r"LAY103.*'v@exp_avg'.*float32.*bfloat16"):
        plan_of(moment, "exp_avg", "float32")
    assert plan_of(moment, "exp_avg", "float32", cast=True).copies
    weight = {"w": entry("a", "weight", torch.bfloat16)}
    assert plan_of(weight, "master", "float32").stand_ins == ["v@master: weight of a"]
    with pytest.raises(LayoutError, match="LAY103"):
        plan_of(weight, "weight", "float32")
    with pytest.raises(CheckpointError, match=r"CKP201.*no 'exp_avg' of 'a'"):
        plan_of(weight, "exp_avg", "float32")


def test_shapes_of_the_states_must_agree() -> None:
    entries = {
        "w": entry("a", "weight", torch.float32),
        "m": entry("a", "exp_avg", torch.float32, (3, 2)),
    }
    with pytest.raises(CheckpointError, match="CKP202"):
        plan_of(entries, "exp_avg", "float32")
    outside = Entry("a", "weight", (2, 3), torch.float32, stored_of([Part((1, 0), (2, 3))]))
    with pytest.raises(CheckpointError, match="CKP202"):
        plan_of({"w": outside}, "weight", "float32")


def test_scalars_come_once_from_every_source() -> None:
    entries = {
        "a": entry("a", "step", torch.float32, ()),
        "b": entry("b", "step", torch.float32, (1,)),
    }
    both = whole("a", (2, 3)) + [p._replace(dst=(2, 0)) for p in whole("b", (2, 3))]
    target = Target("v", "step", (), "float32", tuple(shard_regions((), ())))
    plan = make_plan(index_of(entries), [target], {"v": Variable((4, 3), "float32", both)})
    assert plan.scalars == {0: 2}
    assert [(c.extents, c.dst_base) for c in plan.copies] == [((1,), 0), ((1,), 1)]
    entries["b"] = entry("b", "step", torch.float32, (2,))
    with pytest.raises(CheckpointError, match=r"CKP202.*'b'.*one value"):
        make_plan(index_of(entries), [target], {"v": Variable((4, 3), "float32", both)})
    del entries["b"]
    with pytest.raises(CheckpointError, match=r"CKP201.*no 'step' of 'b'"):
        make_plan(index_of(entries), [target], {"v": Variable((4, 3), "float32", both)})


def test_the_preferred_replica_is_read() -> None:
    rows = [Stored((0, 0), (2, 3), None, file, 0) for file in range(4)]
    entries = {"w": Entry("a", "weight", (2, 3), torch.float32, rows)}
    regions = tuple(shard_regions((0, 0), (2, 3)))
    target = Target("v", "weight", (2, 3), "float32", regions)
    variables = {"v": Variable((2, 3), "float32", whole("a", (2, 3)))}
    for wanted in range(4):
        plan = make_plan(
            index_of(entries), [target], variables, prefer=lambda s, w=wanted: (s.file - w) % 4
        )
        assert [stored.file for stored, _ in plan.shards] == [wanted]


@QUICK
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=60),
    st.integers(1, 64),
    st.randoms(use_true_random=False),
)
def test_loads_are_within_the_bound_of_the_rule(
    sizes: list[int], ranks: int, random: object
) -> None:
    items = {f"k{n}": size for n, size in enumerate(sizes)}
    chosen = balanced(items, range(ranks))
    load = Counter(dict.fromkeys(range(ranks), 0))
    for name, rank in chosen.items():
        load[rank] += items[name]
    assert chosen.keys() == items.keys()
    ideal = max(max(sizes), -(-sum(sizes) // ranks))
    assert max(load.values()) <= 4 / 3 * ideal + 1
    names = list(items)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert balanced({name: items[name] for name in names}, range(ranks)) == chosen


@QUICK
@given(st.data())
def test_constrained_choices_stay_within_what_is_admitted(data: st.DataObject) -> None:
    ranks = data.draw(st.integers(1, 16))
    items = {
        f"k{n}": (size, sorted(admitted))
        for n, (size, admitted) in enumerate(
            data.draw(
                st.lists(
                    st.tuples(st.integers(0, 99), st.sets(st.integers(0, ranks - 1), min_size=1)),
                    max_size=30,
                )
            )
        )
    }
    chosen = constrained(items)
    assert chosen.keys() == items.keys()
    load: Counter[int] = Counter()
    for name, rank in chosen.items():
        assert rank in items[name][1]
        load[rank] += items[name][0]
    forced: Counter[int] = Counter()
    for size, admitted in items.values():
        if len(admitted) == 1:
            forced[admitted[0]] += size
    largest = max((size for size, _ in items.values()), default=0)
    total = sum(size for size, _ in items.values())
    if all(len(admitted) == ranks for _, admitted in items.values()):
        assert max(load.values(), default=0) <= total / ranks + largest
    assert all(load[rank] >= forced[rank] for rank in forced)


def test_writers_are_the_same_whatever_the_order() -> None:
    shards = [
        Held("w", "weight", (8, 4), (2 * n, 0), (2, 4), None, torch.float32) for n in range(4)
    ]
    ranks = [shards[:2], shards[:2], shards[2:], shards[2:] + shards[:1]]
    writers = assign_writers(ranks)
    assert assign_writers([held[::-1] for held in ranks]) == writers
    assert Counter(writers.values()) == Counter({0: 1, 1: 1, 2: 1, 3: 1})
    with pytest.raises(LayoutError, match=r"LAY105.*'w'.*24 of its 32"):
        assign_writers([shards[:2], shards[2:3]])


@given(st.data())
@QUICK
def test_chunks_are_the_same_copy(data: st.DataObject) -> None:
    extents = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=3)))
    strides = tuple(data.draw(st.integers(1, 50)) for _ in extents)
    turned = tuple(data.draw(st.integers(0, 50)) for _ in extents)
    copy = Copy(0, 0, extents, turned, strides, 3, 5)
    limit = data.draw(st.integers(1, 40))
    parts = list(copy.chunks(limit))
    assert all(part.numel <= limit for part in parts)
    pairs = [
        pair
        for part in parts
        for pair in zip(
            places(part.src_base, part.src_strides, part.extents),
            places(part.dst_base, part.dst_strides, part.extents),
            strict=True,
        )
    ]
    want = zip(places(3, turned, extents), places(5, strides, extents), strict=True)
    assert sorted(pairs) == sorted(want)
