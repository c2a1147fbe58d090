# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The inverse: from evaluated pieces if all tensors are described, else by statements."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flexckpt.errors import AoaError
from flexckpt.lang import Program, compile_program, invert
from flexckpt.lang.cover import common, disjoint
from flexckpt.model import TensorSpec
from flexckpt.pieces import Dim, Piece
from tests.flexckpt.lang.evaluate import evaluate, numbers, paint, spec, specs

_Arrays = Mapping[str, np.ndarray]


def _values(program: Program, source: _Arrays) -> dict[str, np.ndarray]:
    return {name: evaluate(v, source) for name, v in program.outputs.items()}


def _there_and_back(aoa: str, source: _Arrays) -> None:
    """Both inverses of a program give its source."""
    there = _values(compile_program(aoa, specs(source), None), source)
    for dest in (specs(source), None):
        back = _values(compile_program(aoa, specs(there), dest, reverse=True), there)
        assert back.keys() == source.keys()
        for name, array in source.items():
            assert np.array_equal(back[name], array), (name, dest is None)


@pytest.mark.parametrize(
    "aoa",
    [
        "a -> x",
        "a, b -> x, axis=0",
        "a, b -> x, axis=-1",
        "a -> x, y, axis=1",
        "a -> x, y, z, axis=1, sizes=[1,3,2]",
        "a, e -> x, axis=1, sizes=[6,2]",
        "a^T -> x",
        "a^T, b -> x, axis=0",
        "a -> x, y, axis=0 x^T -> z",
        "a -> x, permute='[1,0]'",
        "c -> x, permute='[1,2,0]'",
        "a, b -> x, stack=1",
        "a -> x[0:6], unstack, axis=1",
        "a -> t b -> a t -> b",
        "a, b, d -> x, fused_qkv, num_heads=6, num_kv_heads=6, axis=1",
        "a, b -> x, fused_ffn, axis=0",
        "a -> a",
        "",
    ],
)
def test_there_and_back(aoa: str) -> None:
    shapes = {"a": (6, 6), "b": (6, 6), "c": (2, 3, 4), "d": (6, 6), "e": (6, 2)}
    _there_and_back(aoa, numbers(**shapes))


def test_which_copy_comes_back_must_be_known() -> None:
    """Statement by statement the last copy would be lost; the evaluated program has both."""
    source = numbers(a=(6, 6))
    aoa = "a -> b0 a -> b1"
    there = _values(compile_program(aoa, specs(source), None), source)
    exact = compile_program(aoa, specs(there), specs(source), reverse=True)
    assert np.array_equal(_values(exact, there)["a"], source["a"])
    assert exact.twins.keys() == {"a"}
    with pytest.raises(AoaError, match=r"AOA308.* b1 of the source is used by nothing"):
        compile_program(aoa, specs(there), None, reverse=True)
    allowed = {"unexpected": "ignore"}  # as in Paddle
    first = compile_program(aoa, specs(there), None, reverse=True, strict=allowed)
    assert np.array_equal(_values(first, there)["a"], source["a"])


def test_unequal_parts_come_back_exactly() -> None:
    source = numbers(a=(2, 1), b=(2, 5), c=(2, 3))
    aoa = "a, b, c -> x, axis=1"
    there = _values(compile_program(aoa, specs(source), None), source)
    back = _values(compile_program(aoa, specs(there), specs(source), reverse=True), there)
    for name, array in source.items():
        assert np.array_equal(back[name], array)


def test_dropped_is_kept_and_kept_is_dropped() -> None:
    source, model = numbers(a=(2,), b=(3,)), numbers(a=(2,), c=(4,))
    aoa = "b -> _ _ -> c"
    forward = compile_program(aoa, specs(source), specs(model))
    assert (forward.dropped, forward.kept) == ({"b"}, {"c"})
    back = compile_program(aoa, specs(model), specs(source), reverse=True)
    assert (back.dropped, back.kept) == ({"c"}, {"b"})
    assert back.outputs.keys() == {"a"}
    tree = compile_program(aoa, specs(model), None, reverse=True)
    assert tree.dropped == {"c"}
    assert tree.outputs.keys() == {"a"}


def test_names_that_are_not_there_on_the_way_back() -> None:
    """As in Paddle, a destination need not list all that the forward program reads."""
    model = numbers(x=(4, 2))
    back = compile_program("a, b -> x, axis=0", specs(model), {"b": spec((2, 2))}, reverse=True)
    assert np.array_equal(_values(back, model)["b"], model["x"][2:])
    back = compile_program("q -> _ b -> x", specs(model), {"b": spec((4, 2))}, reverse=True)
    assert back.outputs.keys() == {"b"}
    back = compile_program(
        "q.$LAYER_ID -> _ b -> x", specs(model), {"b": spec((4, 2))}, reverse=True
    )
    assert back.outputs.keys() == {"b"}


def test_the_first_of_several_copies_is_read() -> None:
    source = numbers(a=(2, 2))
    aoa = "a -> x a -> y"
    back = compile_program(aoa, {"x": spec((2, 2)), "y": spec((2, 2))}, specs(source), reverse=True)
    assert {p.source for p in back.outputs["a"].pieces} == {"x"}
    assert {p.source for p in back.twins["a"]} == {"y"}
    there = {"x": spec((2, 2)), "y": spec((2, 2))}
    first = compile_program(aoa, there, None, reverse=True, strict=False)
    assert {p.source for p in first.outputs["a"].pieces} == {"x"}


def test_copies_of_parts() -> None:
    source = numbers(k=(4, 2))
    aoa = "k -> p, q, axis=0 p, p, q, q -> x, axis=0"
    forward = compile_program(aoa, specs(source), None)
    there = _values(forward, source)
    back = invert(forward, specs(source))
    assert np.array_equal(_values(back, there)["k"], source["k"])
    out, count = np.full((4, 2), np.nan), np.zeros((4, 2), dtype=int)
    paint(back.twins["k"], there, out, count)
    assert np.array_equal(out, source["k"])


def test_copies_that_overlap() -> None:
    source = numbers(k=(6, 2))
    aoa = "k -> p, _rest, axis=0, sizes=[4,2] k -> _head, q, axis=0, sizes=[2,4]"
    forward = compile_program(aoa, specs(source), {"p": spec((4, 2)), "q": spec((4, 2))})
    back = invert(forward, specs(source))
    assert np.array_equal(_values(back, _values(forward, source))["k"], source["k"])
    assert sum(p.numel for p in back.twins["k"]) == 4


def test_copies_that_overlap_in_a_pattern_have_no_inverse() -> None:
    source = numbers(k=(8,))
    aoa = """
        k -> r, reshape='[4,2]'
        r -> even, odd, unstack=1
        k -> head, tail, axis=0
    """
    dest = {"even": spec((4,)), "head": spec((4,)), "odd": spec((4,))}
    forward = compile_program(aoa, specs(source), dest)
    with pytest.raises(AoaError, match="overlap in a pattern") as caught:
        invert(forward, specs(source))
    assert caught.value.code == "AOA401"


def test_lost_elements_have_no_inverse() -> None:
    source = numbers(k=(6, 2))
    forward = compile_program("k -> p, q, axis=0", specs(source), {"p": spec((3, 2))})
    with pytest.raises(AoaError, match="k has 12 elements, of which only 6") as caught:
        invert(forward, specs(source))
    assert caught.value.code == "AOA401"


def test_missing_and_unexpected_change_sides() -> None:
    source, model = numbers(a=(2,), b=(3,)), numbers(x=(2,), y=(5,))
    with pytest.raises(AoaError, match="b of the destination") as caught:
        compile_program("a -> x", specs(model), specs(source), reverse=True)
    assert caught.value.code == "AOA306"
    rules = {"missing": "ignore"}
    with pytest.raises(AoaError, match="y of the source") as caught:
        compile_program("a -> x", specs(model), specs(source), reverse=True, strict=rules)
    assert caught.value.code == "AOA308"
    back = compile_program("a -> x", specs(model), specs(source), reverse=True, strict=False)
    assert (back.missing, back.unexpected) == (("b",), ("y",))


def test_the_inverse_of_the_inverse() -> None:
    source = numbers(a=(4, 2), b=(4, 6))
    forward = compile_program("a, b -> x, axis=1 x^T -> y", specs(source), None)
    there = _values(forward, source)
    twice = invert(invert(forward, specs(source)), specs(there))
    assert np.array_equal(_values(twice, source)["y"], there["y"])


def _piece(*axes: tuple[int, ...] | int) -> Piece:
    """A piece at given indices: per axis a start, or start, then extents and steps in turn."""
    starts = [a if isinstance(a, int) else a[0] for a in axes]
    dims = []
    for k, a in enumerate(axes):
        if not isinstance(a, int):
            dims += [Dim(n, k, s, k, s) for n, s in zip(a[1::2], a[2::2], strict=True)]
    return Piece("s", tuple(starts), tuple(starts), tuple(dims))


def _elements(piece: Piece) -> set[tuple[int, ...]]:
    out, count = np.zeros((16, 16)), np.zeros((16, 16), dtype=int)
    paint([piece], {"s": np.zeros((16, 16))}, out, count)
    return {tuple(int(i) for i in index) for index in np.argwhere(count)}


def test_overlaps_are_counted() -> None:
    pieces = [
        _piece((0, 4, 1), (0, 4, 1)),
        _piece((0, 4, 1), (4, 4, 1)),
        _piece((2, 4, 1), (2, 4, 1)),
        _piece((0, 4, 2), (8, 2, 4)),
        _piece((1, 4, 2), (8, 2, 4)),
        _piece((0, 2, 4, 2, 1), (8, 8, 1)),
        _piece((0, 2, 4, 4, 1), 12),
        _piece(3, 3),
        _piece(15, (0, 2, 8, 2, 3)),
        _piece((1, 3, 5), (0, 5, 3)),
        _piece((0, 8, 2), (2, 4, 4)),
        _piece((1, 2, 7), (1, 8, 2)),
    ]
    for a in pieces:
        for b in pieces:
            shared = len(_elements(a) & _elements(b))
            assert common(a, b) == shared
            if a is not b:
                assert disjoint([a, b]) == (shared == 0)
    assert disjoint([pieces[i] for i in (0, 1, 3, 4, 8)])
    assert not disjoint([pieces[i] for i in (0, 1, 3, 4, 8, 7)])


_PROGRESSION = st.tuples(st.integers(0, 9), st.integers(1, 7), st.integers(1, 6))


@given(_PROGRESSION, _PROGRESSION)
def test_overlaps_of_steps(a: tuple[int, int, int], b: tuple[int, int, int]) -> None:
    first, second = (set(range(s, s + n * step, step)) for s, n, step in (a, b))
    assert common(_piece(a), _piece(b)) == len(first & second)


def test_a_source_that_the_program_does_not_make() -> None:
    with pytest.raises(AoaError, match=r"x has shape \(2, 2\) in the source, but") as caught:
        compile_program("a -> x", {"x": spec((2, 2))}, {"a": spec((4,))}, reverse=True)
    assert caught.value.code == "AOA304"


def test_shapes_may_be_lists() -> None:
    source = {"a": TensorSpec([2, 2], torch.float32)}  # type: ignore[arg-type]
    dest = {"b": TensorSpec([2, 2], torch.float32, [([0, 0], [2, 2])])}  # type: ignore[arg-type, list-item]
    assert compile_program("a -> b", source, dest).outputs["b"].shape == (2, 2)
    assert compile_program("a -> b, fused_ffn", source, dest).outputs["b"].shape == (2, 2)


def test_dtypes_that_the_destination_leaves_open() -> None:
    f32, bf16 = torch.float32, torch.bfloat16
    aoa = "a, b -> x, axis=0 c -> y, src_dtype='bfloat16', dst_dtype='float32'"
    source = {"x": TensorSpec((4, 2), f32), "y": TensorSpec((2,), f32)}
    open_ = {name: TensorSpec((2, 2), None) for name in "ab"} | {"c": TensorSpec((2,), None)}
    back = compile_program(aoa, source, open_, reverse=True)
    assert {name: v.dtype for name, v in back.outputs.items()} == dict.fromkeys("abc", "float32")
    assert back.outputs["c"].pieces[0].casts == ()
    partly = open_ | {"a": TensorSpec((2, 2), f32), "c": TensorSpec((2,), bf16)}
    back = compile_program(aoa, source, partly, reverse=True)
    assert back.outputs["c"].dtype == "bfloat16"
    assert back.outputs["c"].pieces[0].casts == ("bfloat16",)
    wrong = {name: TensorSpec(spec.shape, bf16) for name, spec in open_.items()}
    with pytest.raises(
        AoaError, match="x is float32 in the source, but the program makes bfloat16"
    ):
        compile_program(aoa, source, wrong, reverse=True)
    free = compile_program(aoa, source, wrong, reverse=True, free_dtypes=["a", "b", "c"])
    assert free.outputs["a"].dtype == "float32"
    mixed = {"p": TensorSpec((2,), None), "q": TensorSpec((2,), f32)}
    assert compile_program("p, q -> r, axis=0", mixed, None).outputs["r"].dtype == "float32"
