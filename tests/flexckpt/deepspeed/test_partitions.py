# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The cut of parameters into partitions, against partitions that NumPy fills."""

from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexckpt.io.deepspeed_partitions import Partitions, even, straddling

SHAPES = {"a.weight": (7, 5), "a.bias": (7,), "b.weight": (3, 7), "n.weight": (7,), "n.bias": (7,)}


def test_what_deepspeed_writes_for_two_ranks() -> None:
    cut = straddling(SHAPES, [0] * 5, 2)
    assert (cut.padded, cut.filled) == (40, [40, 37])
    assert [s[:2] + s[4:] for s in cut.slices] == [
        ("a.weight", 0, 0),
        ("a.bias", 0, 35),
        ("a.bias", 1, 0),
        ("b.weight", 1, 2),
        ("n.weight", 1, 23),
        ("n.bias", 1, 30),
    ]
    assert [s.stop - s.start for s in cut.slices] == [35, 5, 2, 21, 7, 7]


shapes = st.lists(st.lists(st.integers(0, 5), max_size=3).map(tuple), min_size=1, max_size=6)


def _fill(cut: Partitions, wholes: dict[str, np.ndarray], parts: list[np.ndarray]) -> None:
    """Every slice must show the same elements in its partition and in its parameter."""
    seen = {name: np.zeros(whole.size, int) for name, whole in wholes.items()}
    for name, rank, start, stop, at in cut.slices:
        assert start < stop
        np.testing.assert_array_equal(parts[rank][at : at + stop - start], wholes[name][start:stop])
        seen[name][start:stop] += 1
    assert all((count == 1).all() for count in seen.values())


@given(shapes, st.integers(1, 5), st.data())
def test_straddling(sizes: list[tuple[int, ...]], ranks: int, data: st.DataObject) -> None:
    named = {f"p{k}": shape for k, shape in enumerate(sizes)}
    gaps = data.draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)))
    numbers = iter(range(1, 10**6))
    wholes = {
        n: np.fromiter(numbers, float, count=prod(s)) if prod(s) else np.zeros(0)
        for n, s in named.items()
    }
    vector = np.concatenate(
        [v for n, gap in zip(named, gaps, strict=True) for v in (wholes[n], np.zeros(gap))]
    )
    cut = straddling(named, gaps, ranks)
    assert cut.padded * ranks - len(vector) in range(2 * ranks)
    assert sum(cut.filled) == len(vector)
    vector = np.pad(vector, (0, cut.padded * ranks - len(vector)))
    _fill(cut, wholes, list(vector.reshape(ranks, cut.padded)))


@given(shapes, st.integers(1, 5))
def test_even(sizes: list[tuple[int, ...]], ranks: int) -> None:
    named = {f"p{k}": shape for k, shape in enumerate(sizes)}
    wholes = {n: np.arange(prod(s)) + 100.0 * k for k, (n, s) in enumerate(named.items())}
    rows = [
        np.pad(w, (0, -len(w) % ranks)).reshape(ranks, -1) if len(w) else np.zeros((ranks, 0))
        for w in wholes.values()
    ]
    cut = even(named, ranks)
    table = np.concatenate(rows, axis=1)
    assert cut.padded == table.shape[1]
    assert cut.filled == [cut.padded] * ranks
    _fill(cut, wholes, list(table))


@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_more_ranks_than_elements(ranks: int) -> None:
    assert straddling({"w": (1,)}, [0], ranks).slices == [("w", 0, 0, 1, 0)]
    assert even({"w": (1,)}, ranks).slices == [("w", 0, 0, 1, 0)]
