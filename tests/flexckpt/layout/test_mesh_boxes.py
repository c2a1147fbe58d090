# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Boxes of a place in a mesh against torch.chunk applied to a tensor that counts its elements."""

import itertools
from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.layout.mesh_boxes import (
    Cut,
    coordinates,
    local_boxes,
    local_shape,
    unclear_axis,
)

Cuts = Sequence[Cut | None]


def chunk(x: torch.Tensor, parts: int, axis: int) -> list[torch.Tensor]:
    chunks = list(torch.chunk(x, parts, axis))
    return chunks + [x.narrow(axis, 0, 0)] * (parts - len(chunks))


def cut_by_chunks(
    x: torch.Tensor, mesh_shape: Sequence[int], cuts: Cuts, place: Sequence[int]
) -> torch.Tensor:
    """The definition: every mesh dimension, from left to right, chunks what is left."""
    for parts, cut, index in zip(mesh_shape, cuts, place, strict=True):
        if cut is not None:
            strides = chunk(x, cut.factor, cut.axis)
            x = torch.cat([chunk(s, parts, cut.axis)[index] for s in strides], cut.axis)
    return x


def assembled(
    shape: Sequence[int], mesh_shape: Sequence[int], cuts: Cuts, place: Sequence[int]
) -> np.ndarray:
    """The local tensor of a place, put together from its boxes."""
    counting = np.arange(prod(shape)).reshape(shape)
    local = np.full(local_shape(shape, mesh_shape, cuts, place), -1)
    for box in local_boxes(shape, mesh_shape, cuts, place):
        there = tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))
        here = tuple(slice(a, a + n) for a, n in zip(box.start, box.shape, strict=True))
        assert (local[here] == -1).all()
        local[here] = counting[there]
    return local


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[Cut | None, ...]]:
    shape = tuple(draw(st.lists(st.integers(0, 13), min_size=1, max_size=3)))
    mesh_shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    cut = st.builds(Cut, st.integers(0, len(shape) - 1), st.sampled_from([1, 1, 2, 3, 4]))
    cuts = tuple(draw(st.none() | cut) for _ in mesh_shape)
    return shape, mesh_shape, cuts


@settings(max_examples=150, deadline=None)
@given(layouts())
def test_boxes_are_what_chunk_gives(
    layout: tuple[tuple[int, ...], tuple[int, ...], tuple[Cut | None, ...]],
) -> None:
    shape, mesh_shape, cuts = layout
    counting = torch.arange(prod(shape)).reshape(shape)
    for place in coordinates(mesh_shape):
        expected = cut_by_chunks(counting, mesh_shape, cuts, place)
        assert np.array_equal(assembled(shape, mesh_shape, cuts, place), expected.numpy())
        boxes = local_boxes(shape, mesh_shape, cuts, place)
        assert len(boxes) == 1 or all(prod(b.shape) for b in boxes)


def test_boxes_of_64_ranks_tile_an_uneven_tensor() -> None:
    shape, mesh_shape = (129, 70, 3), (4, 8, 2)
    cuts = (Cut(0), Cut(1), Cut(0))
    hits = np.zeros(shape, int)
    for place in coordinates(mesh_shape):
        for box in local_boxes(shape, mesh_shape, cuts, place):
            hits[tuple(slice(a, a + n) for a, n in zip(box.offset, box.shape, strict=True))] += 1
    assert (hits == 1).all()


def test_fsdp_over_tp_of_64_ranks() -> None:
    # FSDP of 8 over tensor parallelism of 8: a rank holds one range, not eight.
    boxes = [
        local_boxes((512, 4), (8, 8), (Cut(0, 8), Cut(0)), place) for place in coordinates((8, 8))
    ]
    assert all(len(b) == 1 for b in boxes)
    # tp comes first: place (dp, tp) holds part dp of part tp.
    assert boxes[8 * 3 + 2][0].offset == (2 * 64 + 3 * 8, 0)


def test_strides_that_touch_are_one_box() -> None:
    # Three strides of one row: the first place takes all of them, the second nothing.
    assert local_boxes((3, 2), (2,), (Cut(0, 3),), (0,)) == (((0, 0), (3, 2), (0, 0)),)
    assert local_boxes((3, 2), (2,), (Cut(0, 3),), (1,)) == (((3, 0), (0, 2), (0, 0)),)


def test_a_place_without_elements_has_an_empty_box_inside_the_tensor() -> None:
    (box,) = local_boxes((3, 2), (4,), (Cut(0),), (3,))
    assert box == ((3, 0), (0, 2), (0, 0))
    (box,) = local_boxes((), (2,), (None,), (1,))
    assert box == ((), (), ())


def fsdp_over_tp(n: int, dp: int, tp: int) -> bool:
    """Whether cutting by tp and then by dp gives everywhere what the strided placement says."""
    x = torch.arange(n)
    return all(
        torch.equal(
            chunk(chunk(x, tp, 0)[j], dp, 0)[i],
            cut_by_chunks(x, (dp, tp), (Cut(0, tp), Cut(0)), (i, j)),
        )
        for i, j in itertools.product(range(dp), range(tp))
    )


@pytest.mark.parametrize(("dp", "tp"), [(4, 2), (2, 4), (8, 8), (3, 5)])
def test_unclear_is_where_two_readings_of_strided_cuts_differ(dp: int, tp: int) -> None:
    clear = []
    for n in range(70):
        clear.append(unclear_axis((2, n), (dp, tp), (Cut(1, tp), Cut(1))) is None)
        assert clear[-1] == fsdp_over_tp(n, dp, tp)
    assert all(clear[::tp])  # where tp cuts evenly nothing is unclear


def test_strides_that_no_order_of_cuts_makes_have_one_reading() -> None:
    assert unclear_axis((9,), (4,), (Cut(0, 2),)) is None
    assert unclear_axis((9,), (4, 3), (Cut(0, 2), Cut(0))) is None
    assert unclear_axis((9,), (4, 2), (Cut(0, 2), None)) is None
    assert unclear_axis((9,), (4, 2), (Cut(0, 2), Cut(0))) == 0
