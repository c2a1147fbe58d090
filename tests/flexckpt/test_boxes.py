# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Boxes and flat ranges against NumPy arrays that count their elements."""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.boxes import (
    Box,
    Region,
    box_at,
    c_strides,
    flat_range_boxes,
    full_box,
    shard_regions,
)

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


def at(box: Box) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))


def marked(shape: tuple[int, ...], box: Box) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[at(box)] = True
    return mask


@st.composite
def box_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    ends = [sorted([draw(st.integers(0, n)), draw(st.integers(0, n))]) for n in shape]
    return Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))


@st.composite
def two_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], Box, Box]:
    shape = draw(SHAPES)
    return shape, draw(box_in(shape)), draw(box_in(shape))


@settings(deadline=None)
@given(two_boxes())
def test_intersection_and_difference(case: tuple[tuple[int, ...], Box, Box]) -> None:
    shape, one, other = case
    first, second = marked(shape, one), marked(shape, other)
    assert one.numel == first.sum()
    assert one.shape == first[at(one)].shape
    common = one.intersect(other)
    assert (common is None) == (not (first & second).any())
    if common is not None:
        assert np.array_equal(marked(shape, common), first & second)
    hits = np.zeros(shape, int)
    for rest in one.subtract(other):
        assert rest.numel
        hits[at(rest)] += 1
    assert np.array_equal(hits, (first & ~second).astype(int))
    if one.contains(other):
        assert not (second & ~first).any()
    elif second.any():
        assert (second & ~first).any()


@st.composite
def flat_ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], int, int]:
    shape = draw(SHAPES)
    start, stop = sorted([draw(st.integers(0, prod(shape))), draw(st.integers(0, prod(shape)))])
    return shape, start, stop


@settings(max_examples=300, deadline=None)
@given(flat_ranges())
def test_flat_ranges_are_few_boxes_in_order(case: tuple[tuple[int, ...], int, int]) -> None:
    shape, start, stop = case
    boxes = flat_range_boxes(shape, start, stop)
    assert len(boxes) <= max(2 * len(shape) - 1, 1)
    counting = np.arange(prod(shape)).reshape(shape)
    assert all(full_box(shape).contains(box) for box in boxes)
    elements = [counting[at(box)].ravel().tolist() for box in boxes]
    assert [e for part in elements for e in part] == list(range(start, stop))
    assert all(elements)


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 7), (4, 3)])
def test_what_is_no_range_is_refused(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="is not a range of a box of shape"):
        flat_range_boxes((2, 3), start, stop)


def test_the_bound_is_reached() -> None:
    assert len(flat_range_boxes((3, 3, 3), 1, 26)) == 5
    assert flat_range_boxes((4, 6), 6, 18) == [Box((1, 0), (3, 6))]
    assert flat_range_boxes((), 0, 1) == [Box((), ())]


@given(SHAPES)
def test_strides_are_those_of_numpy(shape: tuple[int, ...]) -> None:
    if 0 not in shape:
        array = np.empty(shape, np.int8)
        assert [s for s, n in zip(c_strides(shape), shape, strict=True) if n > 1] == [
            s for s, n in zip(array.strides, shape, strict=True) if n > 1
        ]
    assert all(s >= 1 for s in c_strides(shape))


def read(region: Region, storage: np.ndarray) -> np.ndarray:
    """The elements of a region, one by one by its definition."""
    out = np.empty(region.box.shape, storage.dtype)
    for index in np.ndindex(*region.box.shape):
        out[index] = storage[
            region.base + sum(i * s for i, s in zip(index, region.strides, strict=True))
        ]
    return out


@settings(deadline=None)
@given(flat_ranges(), st.integers(0, 5))
def test_regions_of_a_flattened_shard(case: tuple[tuple[int, ...], int, int], base: int) -> None:
    local, start, stop = case
    offset = tuple(range(1, len(local) + 1))
    counting = np.arange(prod(local)).reshape(local)
    storage = np.concatenate([np.full(base, -1), counting.ravel()[start:stop]])
    seen = 0
    for region in shard_regions(offset, local, (start, stop), None, base):
        inside = Box(
            tuple(a - o for a, o in zip(region.box.start, offset, strict=True)),
            tuple(b - o for b, o in zip(region.box.stop, offset, strict=True)),
        )
        assert np.array_equal(read(region, storage), counting[at(inside)])
        seen += region.box.numel
    assert seen == stop - start


def test_regions_of_a_strided_shard() -> None:
    storage = np.arange(40)
    tensor = np.lib.stride_tricks.as_strided(storage[3:], (4, 3), (8 * 1, 8 * 10))
    (region,) = shard_regions((5, 6), (4, 3), strides=(1, 10), base=3)
    assert region.box == box_at((5, 6), (4, 3))
    assert np.array_equal(read(region, storage), tensor)
    (dense,) = shard_regions((0, 0), (4, 3))
    assert np.array_equal(read(dense, storage), np.arange(12).reshape(4, 3))
