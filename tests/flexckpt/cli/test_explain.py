# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.explain says what becomes of every tensor."""

import pytest
import torch

import flexckpt
from flexckpt import TensorSpec


def specs(**shapes: tuple[int, ...]) -> dict[str, TensorSpec]:
    return {
        name.replace("__", "."): TensorSpec(shape, torch.float32) for name, shape in shapes.items()
    }


def how(aoa: str, source: dict[str, TensorSpec], name: str) -> str:
    (row,) = (one for one in flexckpt.explain(source, aoa=aoa).outputs if one.name == name)
    return row.how


@pytest.mark.parametrize(
    ("aoa", "want"),
    [
        ("a -> c", ""),
        ("a^T -> c", "transposed"),
        ("a, b -> c, axis=0", "2 pieces of 2 tensors"),
        ("a -> c, d, axis=0", "a part"),
        ("a -> c, dtype='bfloat16'", "cast to bfloat16"),
        ("x -> c, permute='[2, 0, 1]'", "axes permuted"),
        ("x -> c, permute='[2, 1, 0]'", "axes permuted"),
    ],
)
def test_what_happens_to_the_values(aoa, want):
    source = specs(a=(4, 6), b=(2, 6), x=(2, 3, 5))
    assert how(aoa, source, "c") == want


def test_every_tensor_has_its_place():
    source = specs(a=(4,), b=(4,), c=(4,), same=(2,))
    dest = specs(x=(4,), same=(2,), kept=(3,), missing=(5,))
    found = flexckpt.explain(source, dest, aoa="a -> x\nb -> _\n_ -> kept")
    assert [(row.name, row.sources, row.identity) for row in found.outputs] == [
        ("x", ("a",), False),
        ("same", ("same",), True),
    ]
    assert found.dropped == ["b"]
    assert found.kept == ["kept"]
    assert found.missing == ["missing"]
    assert found.unexpected == ["c"]
    text = found.text()
    assert "Missing: no source\n  missing\n" in text
    assert "Unexpected: taken by nothing\n  c\n" in text
    assert "1 rewritten, 1 unchanged, 1 missing, 1 unexpected, 1 dropped, 1 kept\n" in text


def test_strict_raises_what_is_shown_otherwise():
    with pytest.raises(flexckpt.AoaError, match="missing"):
        flexckpt.explain(specs(a=(4,)), specs(a=(4,), missing=(5,)), strict=True)


def test_reverse_explains_the_inverse():
    source = specs(c=(6, 4))
    dest = specs(a=(4, 4), b=(2, 4))
    found = flexckpt.explain(source, dest, aoa="a, b -> c, axis=0", reverse=True)
    assert {row.name: row.sources for row in found.outputs} == {"a": ("c",), "b": ("c",)}


def test_guesses_of_an_inverse_are_shown():
    source, aoa = specs(c=(6, 4)), "a, b -> c, axis=0"
    found = flexckpt.explain(source, aoa=aoa, reverse=True)
    assert len(found.assumed) == 1
    assert "as if all parts were of equal length\n  " in found.text()
    known = flexckpt.explain(source, specs(a=(5, 4), b=(1, 4)), aoa=aoa, reverse=True)
    assert known.assumed == []
    assert "equal length" not in known.text()


def test_layers_that_are_alike_share_a_paragraph():
    source = {
        f"l.{layer}.e.{expert}.w": TensorSpec((2, 3), torch.bfloat16)
        for layer in range(4)
        for expert in range(8)
    }
    found = flexckpt.explain(source, aoa="l.$LAYER_ID.e.*.w -> l.$LAYER_ID.w, axis=0")
    assert found.text() == (
        "Rewritten\n"
        "  l.{0..3}.w  [16, 3] bfloat16  (4 tensors)\n"
        "    <- l.{0..3}.e.{0..7}.w  [2, 3] bfloat16\n"
        "       8 pieces of 8 tensors\n"
        "\n"
        "4 rewritten, 0 unchanged, 0 missing, 0 unexpected, 0 dropped, 0 kept\n"
    )


def test_after_explain_the_name_is_still_the_function():
    flexckpt.explain(specs(a=(1,)))
    assert callable(flexckpt.explain)
