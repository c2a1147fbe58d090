# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names as patterns, sizes as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flexckpt.wording import patterns, size_text, tensor_text


@pytest.mark.parametrize(
    ("names", "want"),
    [
        ([], []),
        (["a.b"], [("a.b", 1)]),
        (["h.7.w"], [("h.7.w", 1)]),
        ([f"h.{k}.w" for k in range(32)], [("h.{0..31}.w", 32)]),
        (["h.10.w", "h.9.w"], [("h.{9, 10}.w", 2)]),
        (["h.0.w", "h.4.w", "h.2.w"], [("h.{0, 2, 4}.w", 3)]),
        ([f"h.{k}.w" for k in range(0, 20, 2)], [("h.{0..18, 10 of them}.w", 10)]),
        (["h.0.w1", "h.0.w2"], [("h.0.w1", 1), ("h.0.w2", 1)]),
        (["layer_0.w", "layer_1.w", "layer_2.w"], [("layer_{0..2}.w", 3)]),
        (
            [f"l.{a}.e.{b}.w" for a in range(3) for b in range(4)],
            [("l.{0..2}.e.{0..3}.w", 12)],
        ),
        (["{}", "0"], [("{}", 1), ("0", 1)]),
        (["b.0", "a", "b.1"], [("b.{0, 1}", 2), ("a", 1)]),
    ],
)
def test_patterns(names, want):
    assert patterns(names) == want


parts = st.sampled_from(["0", "1", "12", "w", "w1", "layers", "{}", "x{0}"])
names = st.lists(parts, min_size=1, max_size=4).map(".".join)


@given(st.lists(names, unique=True))
def test_every_name_is_counted_once(found):
    assert sum(count for _, count in patterns(found)) == len(found)


@pytest.mark.parametrize(
    ("count", "want"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (100 * 2**20, "100 MiB"),
        (5 * 2**30, "5.0 GiB"),
        (3000 * 2**40, "3000 TiB"),
    ],
)
def test_sizes(count, want):
    assert size_text(count) == want


def test_tensor_of_no_axes():
    assert tensor_text((), "float32") == "[] float32"
