# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Parts of pieces against the list of all their (source index, destination index) pairs."""

from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexckpt.boxes import Box
from flexckpt.pieces import Dim, Piece, Side, Variable, narrow, restrict, whole

Pair = tuple[tuple[int, ...], tuple[int, ...]]


def pairs(piece: Piece) -> list[Pair]:
    """Every pair of indices, by the definition of a piece."""
    found = []
    for index in product(*(range(d.extent) for d in piece.dims)):
        src, dst = list(piece.src), list(piece.dst)
        for i, d in zip(index, piece.dims, strict=True):
            src[d.src_axis] += i * d.src_step
            dst[d.dst_axis] += i * d.dst_step
        found.append((tuple(src), tuple(dst)))
    return found


@st.composite
def any_piece(draw: st.DrawFn) -> Piece:
    """Any extents and steps, several dims on one axis; even steps that overlap."""
    src_ndim, dst_ndim = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    step = st.integers(1, 7)
    dim = st.builds(
        Dim,
        st.integers(2, 4),
        st.integers(0, src_ndim - 1),
        step,
        st.integers(0, dst_ndim - 1),
        step,
    )
    return Piece(
        "a",
        tuple(draw(st.integers(0, 3)) for _ in range(src_ndim)),
        tuple(draw(st.integers(0, 3)) for _ in range(dst_ndim)),
        tuple(draw(st.lists(dim, max_size=4))),
        draw(st.sampled_from([(), ("bfloat16",)])),
    )


def check_parts(piece: Piece, parts: list[Piece], expected: list[Pair]) -> None:
    assert Counter(pair for part in parts for pair in pairs(part)) == Counter(expected)
    for part in parts:
        assert part.numel == len(pairs(part))
        assert (part.source, part.casts, part.fill) == (piece.source, piece.casts, piece.fill)
        assert all(d.extent > 1 for d in part.dims)


@settings(max_examples=300, deadline=None)
@given(any_piece(), st.data())
@pytest.mark.parametrize("side", ["src", "dst"])
def test_narrow(side: Side, piece: Piece, data: st.DataObject) -> None:
    k = 0 if side == "src" else 1
    axis = data.draw(st.integers(0, len(piece.src if side == "src" else piece.dst) - 1))
    start, stop = sorted(data.draw(st.tuples(st.integers(0, 40), st.integers(0, 40))))
    expected = [pair for pair in pairs(piece) if start <= pair[k][axis] < stop]
    check_parts(piece, narrow(piece, side, axis, start, stop), expected)


@settings(max_examples=200, deadline=None)
@given(any_piece(), st.data())
@pytest.mark.parametrize("side", ["src", "dst"])
def test_restrict(side: Side, piece: Piece, data: st.DataObject) -> None:
    k = 0 if side == "src" else 1
    ends = [
        sorted(data.draw(st.tuples(st.integers(0, 25), st.integers(0, 25))))
        for _ in (piece.src if side == "src" else piece.dst)
    ]
    box = Box(tuple(a for a, _ in ends), tuple(b for _, b in ends))
    expected = [
        pair
        for pair in pairs(piece)
        if all(a <= i < b for i, (a, b) in zip(pair[k], ends, strict=True))
    ]
    check_parts(piece, restrict(piece, side, box), expected)


def test_a_range_of_a_merged_axis_stays_few_pieces() -> None:
    """A [4, 5, 6] tensor as one axis of 120: a cut of it is at most five pieces, not one a row."""
    dims = (Dim(4, 0, 1, 0, 30), Dim(5, 1, 1, 0, 6), Dim(6, 2, 1, 0, 1))
    piece = Piece("a", (0, 0, 0), (0,), dims)
    parts = narrow(piece, "dst", 0, 1, 119)
    assert len(parts) == 5
    assert sum(part.numel for part in parts) == 118
    assert narrow(piece, "dst", 0, 0, 120) == [piece]
    assert narrow(piece, "dst", 0, 30, 60) == [
        Piece("a", (1, 0, 0), (30,), dims[1:]),
    ]


@pytest.mark.parametrize("shape", [(), (1,), (3, 1, 4), (2, 0), (0,)])
def test_whole(shape: tuple[int, ...]) -> None:
    parts = whole("a", shape)
    counting = list(np.ndindex(*shape))
    assert [pair for part in parts for pair in pairs(part)] == [(i, i) for i in counting]
    assert len(parts) == (0 if 0 in shape else 1)
    for part in whole(None, shape, fill=2.5):
        assert (part.source, part.fill) == (None, 2.5)


def evaluated(variable: Variable, sources: dict[str, np.ndarray], box: Box) -> np.ndarray:
    out: Any = np.full(tuple(b - a for a, b in zip(box.start, box.stop, strict=True)), np.nan)
    for piece in variable.query(box):
        for src, dst in pairs(piece):
            at = tuple(i - a for i, a in zip(dst, box.start, strict=True))
            assert np.isnan(out[at])
            out[at] = sources[piece.source or ""][src]
    return np.asarray(out)


@given(st.data())
@settings(deadline=None)
def test_a_variable_is_queried_by_box(data: st.DataObject) -> None:
    """Two tensors, one of them transposed, side by side."""
    a, b = np.arange(12.0).reshape(3, 4), np.arange(100.0, 106.0).reshape(2, 3)
    expected = np.concatenate([a, b.T], 1)
    pieces = [
        *whole("a", a.shape),
        Piece("b", (0, 0), (0, 4), (Dim(2, 0, 1, 1, 1), Dim(3, 1, 1, 0, 1))),
    ]
    variable = Variable(expected.shape, "float64", pieces)
    rows = sorted(data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3))))
    columns = sorted(data.draw(st.tuples(st.integers(0, 6), st.integers(0, 6))))
    box = Box((rows[0], columns[0]), (rows[1], columns[1]))
    found = evaluated(variable, {"a": a, "b": b}, box)
    assert np.array_equal(found, expected[slice(*rows), slice(*columns)])
