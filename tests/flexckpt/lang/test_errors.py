# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every code of the language: what raises it, where it points, what it says."""

from typing import NamedTuple

import pytest
import torch

from flexckpt.errors import AoaError
from flexckpt.lang import compile_program
from flexckpt.model import TensorSpec

_F32, _BF16 = torch.float32, torch.bfloat16


class Bad(NamedTuple):
    """A program that must fail.

    Attributes:
        at: the text below which the caret stands; None if the error has no place.
        says: a part of the message.
    """

    code: str
    aoa: str
    at: str | None
    says: str
    dest: dict[str, tuple[int, ...]] | None = None
    reverse: bool = False


_SOURCE = {
    "a": (2, 4),
    "b": (2, 4),
    "c": (3, 4),
    "v": (6,),
    "s": (),
    "big": (4998, 4999),
    "m.0.q": (2, 2),
    "m.1.q": (2, 2),
    "e.0.0.w": (2, 2),
    "e.0.1.w": (2, 2),
}

_BAD = [
    Bad("AOA101", "a -> x ; b -> y", ";", "';' cannot start"),
    Bad("AOA101", "a -> x, dtype='float16", "'", "close the quotes"),
    Bad("AOA101", "ä -> x", "ä", "quote names"),
    Bad("AOA102", "a -> x, axis=1.5", ".5", "where ',' or the end of the statement was"),
    Bad("AOA102", "a ->", "->", "the statement ends where a name"),
    Bad("AOA102", "-> b", "->", "'->' stands where a name"),
    Bad("AOA102", "a, -> b", "->", "stands where a name"),
    Bad("AOA102", "a -> b -> c", "->", "'->' stands"),
    Bad("AOA102", "a -> b,", ",", "the statement ends"),
    Bad("AOA102", "a b -> c", "a", "the statement ends where"),
    Bad("AOA102", "a -> b, axis=", "=", "the statement ends"),
    Bad("AOA102", "a -> b, dtype=float16", "float16", "put the value in quotes"),
    Bad("AOA102", "a[0] -> b", "]", "where ':' was expected"),
    Bad("AOA102", "a -> b, axis=[1,,2]", ",", "where a number"),
    Bad("AOA102", "'' -> b", "''", "a name is empty"),
    Bad("AOA102", "a -> b, fused_qkv, c", "fused_qkv", "stands once, behind names"),
    Bad("AOA102", "a[0:2] .w -> b, axis=0", "a[0:2] .w", "without a blank"),
    Bad("AOA103", "a -> x, foo=1", "foo=1", "no attribute 'foo'"),
    Bad("AOA103", "a, b -> x, axis=0, axis=1", "axis=1", "axis is given twice"),
    Bad("AOA103", "a -> x, permute='[1,0]', dtype='float16'", "dtype='float16'", "one operation"),
    Bad("AOA103", "a, b -> x", "a, b -> x", "need axis="),
    Bad("AOA103", "a, b -> x, permute='[1,0]'", None, "permute takes one name"),
    Bad("AOA302", "a, c -> x, axis=0, sizes=[3,2]", None, "lengths [2, 3] on axis 0 are not the"),
    Bad("AOA103", "a -> x, y, axis=0, sizes=[2]", None, "1 lengths for 2 names"),
    Bad("AOA103", "a -> x, src_dtype='float16'", "src_dtype='float16'", "together"),
    Bad("AOA103", "a -> x, pad=4", "a -> x, pad=4", "pad and unpad need axis="),
    Bad("AOA103", "a -> _, axis=0", "axis=0", "takes no attributes"),
    Bad("AOA103", "a, b, c -> x, fused_qkv, num_kv_heads=2", None, "needs num_heads="),
    Bad("AOA103", "a, b, c -> x, fused_qkv, num_heads=2", None, "needs num_kv_heads="),
    Bad(
        "AOA103",
        "a, b, c -> x, fused_qkv, num_heads=2, num_kv_heads=1, num_key_value_groups=2",
        None,
        "different things",
    ),
    Bad("AOA103", "a, b -> x, fused_ffn, num_heads=2", "num_heads=2", "fused_ffn takes axis, tp"),
    Bad("AOA104", "a, b -> x, axis='0'", "axis='0'", "axis must be an integer, not '0'"),
    Bad("AOA104", "a -> x, dtype='int8'", "dtype='int8'", "one of float16"),
    Bad("AOA104", "a -> x, dtype='float64'", "dtype='float64'", "one of float16"),
    Bad("AOA104", f"{'a[0:60000], ' * 2}b -> x, axis=0", "a[0:60000]", "at most 65536 names"),
    Bad("AOA203", "a -> x, fused_ffn, tp=[65521,65519]", None, "more than 65536 in common"),
    Bad("AOA104", "a -> x, dtype=7", "dtype=7", "one of float16"),
    Bad("AOA104", "a -> x, permute='[0,0]'", "permute='[0,0]'", "every axis once"),
    Bad("AOA104", "a -> x, permute='[-1,0]'", "permute='[-1,0]'", "every axis once"),
    Bad("AOA104", "a -> x, permute='import os'", "permute='import os'", "must be a list"),
    Bad("AOA104", "a -> x, y, axis=0, sizes=[-1,3]", "sizes=[-1,3]", "a list of lengths"),
    Bad("AOA104", "a -> x, reshape='[-1,-1]'", "reshape='[-1,-1]'", "one may be -1"),
    Bad("AOA104", "a -> x, pad=-1, axis=0", "pad=-1", "pad must be a length"),
    Bad("AOA104", "a -> x, axis=9999999999999999999999", "9999999999999999999999", "18 digits"),
    Bad("AOA104", "a -> x[2:2], axis=0", "x[2:2]", "is empty"),
    Bad("AOA104", "a -> x[0:999999999999], axis=0", "x[0:999999999999]", "at most 65536"),
    Bad(
        "AOA104",
        "a, b, c -> x, fused_qkv, num_heads=999999999, num_kv_heads=1",
        "num_heads=999999999",
        "from 1 to 65536",
    ),
    Bad("AOA104", "a, b -> x, fused_ffn, tp=0", "tp=0", "tp must be"),
    Bad("AOA104", "a -> x, fused_ffn, tp=2", "a -> x, fused_ffn, tp=2", "two numbers"),
    Bad("AOA201", "foo.$LAYER_ID.q -> z.$LAYER_ID", "foo.$LAYER_ID.q", "matches no tensor"),
    Bad("AOA201", "foo.*.q -> z, axis=0", "foo.*.q", "matches no tensor of the source"),
    Bad("AOA201", "a -> z.*, axis=0", "z.*", "of the destination", {"y": (2, 4)}),
    Bad("AOA202", "m.$LAYER_ID.q -> z", "z", "lacks $LAYER_ID"),
    Bad("AOA202", "m.$LAYER_ID.q -> z.$LAYER_ID.$EXPERT_ID", "z.", "has $EXPERT_ID"),
    Bad("AOA202", "e.$LAYER_ID.$EXPERT_ID.w -> z.$LAYER_ID", "z.", "lacks $EXPERT_ID"),
    Bad("AOA203", "a^T^T -> x", "a^T^T", "transposed twice"),
    Bad("AOA203", "a -> x^T", "x^T", "transpose on the left"),
    Bad("AOA203", "a, b -> x, y, axis=0", "a, b", "2 names on the left and 2 on the right"),
    Bad("AOA203", "e.*.*.w -> x, axis=0", "e.*.*.w", "a name has one star, not 2"),
    Bad("AOA203", "a -> x.*, axis=0", "x.*", "needs a description of the destination"),
    Bad("AOA203", "a, b -> x, fused_qkv, num_heads=2, num_kv_heads=1", None, "not 2 to 1"),
    Bad("AOA203", "a -> x, fused_qkv, num_heads=2, num_kv_heads=1", None, "needs no statement"),
    Bad("AOA203", "a, b, c -> x, fused_ffn", None, "not 3 to 1"),
    Bad("AOA203", "a, b -> x, fused_qkv_old, num_heads=2, num_kv_heads=1", None, "not 2 to 1"),
    Bad("AOA203", "a, b, c -> x, fused_qkv, num_heads=3, num_kv_heads=2", None, "no multiple"),
    Bad(
        "AOA203",
        "a, b, c -> x, fused_qkv_old, num_heads=4, num_kv_heads=2, tp=4",
        None,
        "2 pieces of K cannot be dealt to 4 ranks",
    ),
    Bad("AOA203", "a -> x, y, stack=0", None, "stack takes one name on the right"),
    Bad("AOA203", "a, b -> x, unstack=0", None, "unstack takes one name on the left"),
    Bad("AOA203", "a, _ -> x, axis=0", "_", "_ stands alone"),
    Bad("AOA203", "_ -> _", "_ -> _", "on one side only"),
    Bad("AOA203", "a^T -> _", "a^T -> _", "cannot be dropped"),
    Bad("AOA203", "m.$LAYER_ID_OFFSET.q -> z.$LAYER_ID_OFFSET", "z.", "count layers from 1"),
    Bad("AOA301", "nope -> x", "nope -> x", "nope is neither"),
    Bad("AOA301", "m.0.qq -> x", "m.0.qq -> x", "did you mean m.0.q?"),
    Bad("AOA301", "nope -> _", "nope -> _", "nope is neither"),
    Bad("AOA301", "x -> y\na -> x", "x -> y", "x is neither"),
    Bad("AOA302", "a, c -> x, axis=1", None, "(2, 4) and (3, 4) cannot be joined on axis 1"),
    Bad("AOA302", "a, v -> x, axis=0", None, "cannot be joined"),
    Bad("AOA302", "a, b -> x, axis=2", None, "axis 2 is outside a tensor of 2 dimensions"),
    Bad("AOA302", "a, b -> x, axis=-3", None, "axis -3 is outside"),
    Bad("AOA302", "c -> x, y, axis=0", None, "2 equal parts do not divide"),
    Bad("AOA302", "a -> x, y, axis=1, sizes=[1,2]", None, "add up to 3"),
    Bad("AOA302", "a -> x, permute='[0]'", None, "permute names 1 axes"),
    Bad("AOA302", "a -> x, permute='[0,2,1]'", None, "permute names 3 axes"),
    Bad("AOA302", "a -> x, reshape='[3,3]'", None, "has 8 elements, but [3, 3] has 9"),
    Bad("AOA302", "a -> x, reshape='[3,-1]'", None, "no length fits -1"),
    Bad("AOA302", "big -> x, reshape='[4999,4998]'", None, "more than 4096 pieces"),
    Bad("AOA302", "a -> x, pad=1, axis=0", None, "pad=1 is shorter than axis 0"),
    Bad("AOA302", "a -> x, unpad=3, axis=0", None, "unpad=3 is longer"),
    Bad("AOA302", "a, c -> x, stack=0", None, "cannot be stacked"),
    Bad("AOA302", "a -> x, y, z, unstack=0", None, "2 tensors, but there are 3 names"),
    Bad("AOA302", "a, c -> x, fused_ffn, axis=0", None, "lengths [2, 3] on axis 0"),
    Bad("AOA302", "v -> x, y, fused_ffn", None, "axis 1 is outside"),
    Bad("AOA302", "s, s -> x, axis=0", None, "axis 0 is outside a tensor of 0 dimensions"),
    Bad("AOA303", "a -> x, dtype='bfloat16'\nx, b -> y, axis=0", "x, b", "cast one of them"),
    Bad("AOA304", "a -> x", "a -> x", "x has shape (4, 4) in the destination", {"x": (4, 4)}),
    Bad("AOA304", "", None, "a has shape (2, 5) in the destination", {"a": (2, 5)}),
    Bad("AOA305", "a -> x, x, axis=0", "a -> x, x, axis=0", "x is written twice"),
    Bad("AOA306", "a -> x", None, "y of the destination has no source", {"x": (2, 4), "y": (1,)}),
    Bad("AOA306", "a -> _", None, "a of the destination has no source", {"a": (2, 4)}),
    Bad("AOA307", "b -> _\nb -> x", "b -> x", "b was dropped before"),
    Bad("AOA307", "b -> x\nb -> _", "b -> _", "b was used before"),
    Bad("AOA307", "a -> x\nx -> _\nx -> y", "x -> y", "x was dropped before"),
    Bad("AOA307", "b -> a\na -> _\na -> y", "a -> y", "a was dropped before"),
    Bad("AOA308", "a -> x", None, "b of the source is used by nothing", {"x": (2, 4)}),
    Bad("AOA308", "a -> b", None, "b of the source is used by nothing"),
    Bad("AOA308", "a -> b\nb -> x", None, "b of the source is used by nothing"),
    Bad("AOA401", "x -> a, dtype='float32'", "dtype", "src_dtype= and dst_dtype=", None, True),
    Bad("AOA401", "x -> a, reshape='[8]'", "reshape", "has no way back", None, True),
    Bad("AOA401", "x -> a, unpad=2, axis=0", "unpad", "has no way back", None, True),
    Bad("AOA401", "x -> a, t, axis=0\nt -> _", None, "x has 16 elements", {"x": (4, 4)}, True),
]


@pytest.mark.parametrize("bad", _BAD, ids=lambda bad: f"{bad.code}: {bad.aoa[:40]!r}")
def test_error(bad: Bad) -> None:
    source = {name: TensorSpec(shape, _F32) for name, shape in _SOURCE.items()}
    dest = bad.dest and {name: TensorSpec(shape, _F32) for name, shape in bad.dest.items()}
    with pytest.raises(AoaError) as caught:
        compile_program(bad.aoa, source, dest, reverse=bad.reverse)
    error = caught.value
    assert error.code == bad.code
    assert bad.says in error.message
    assert str(error).startswith(f"[{error.code}] ")
    if bad.at is None:
        return
    assert error.line is not None
    assert error.column is not None
    assert error.excerpt is not None
    assert bad.aoa.split("\n")[error.line - 1][error.column - 1 :].startswith(bad.at)
    line, caret = error.excerpt.split("\n")
    assert line[caret.index("^") :].startswith(bad.at)
    assert error.excerpt in str(error)


def test_every_code_of_the_language_is_tried() -> None:
    from flexckpt.codes import CODES

    tried = {bad.code for bad in _BAD} | {"AOA204"}  # test_macros
    assert tried == {code for code in CODES if code.startswith("AOA")}


def test_the_place_counts_lines_over_a_list() -> None:
    source = {"a": TensorSpec((2,), _F32)}
    with pytest.raises(AoaError) as caught:
        compile_program(["a -> b", "# a comment\n\n b ->\n  c, axis='x'", "c -> d"], source, None)
    error = caught.value
    assert (error.statement, error.line, error.column) == (1, 5, 6)
    assert error.excerpt == "  c, axis='x'\n     ^^^^^^^^"


def test_the_expanded_form_is_told() -> None:
    source = {f"l.{i}.{n}": TensorSpec((2, 2 + i), _F32) for i in range(2) for n in "gu"}
    source["l.1.u"] = TensorSpec((2, 5), _F32)
    aoa = "l.$LAYER_ID.g, l.$LAYER_ID.u -> m.$LAYER_ID.f, fused_ffn"
    with pytest.raises(AoaError) as caught:
        compile_program(aoa, source, None)
    assert caught.value.code == "AOA302"
    assert caught.value.expanded is not None
    assert caught.value.expanded.startswith("l.1.g, l.1.u -> l.1.g.l.1.u.tmp, axis=1\n")


def test_a_long_line_is_cut_around_the_place() -> None:
    names = ", ".join(f"n{i}" for i in range(500))
    with pytest.raises(AoaError) as caught:
        compile_program(f"{names}; -> x", {}, None)
    assert caught.value.excerpt is not None
    line, caret = caught.value.excerpt.split("\n")
    assert len(line) <= 160
    assert line[caret.index("^")] == ";"


def test_dtypes_must_fit() -> None:
    source = {"a": TensorSpec((2,), _F32)}
    with pytest.raises(AoaError, match="is bfloat16 in the destination") as caught:
        compile_program("a -> b", source, {"b": TensorSpec((2,), _BF16)})
    assert caught.value.code == "AOA303"
    aoa = "a -> b, dtype='bfloat16'"
    with pytest.raises(AoaError) as caught:  # no part of a name is enough
        compile_program(aoa, source, {"b": TensorSpec((2,), torch.float16)})
    assert caught.value.code == "AOA303"
    compile_program("a -> b", source, {"b": TensorSpec((2,), None)})
    compile_program("a -> b", source, {"b": TensorSpec((2,), _BF16)}, free_dtypes=["b"])


def test_a_program_is_text() -> None:
    with pytest.raises(AoaError, match="a program is text, not int"):
        compile_program(["a -> b", 7], {}, None)  # type: ignore[list-item]


def test_bad_settings() -> None:
    with pytest.raises(AoaError, match="layout must be"):
        compile_program("", {}, None, layout="jax")  # type: ignore[arg-type]
    with pytest.raises(AoaError, match="strict maps"):
        compile_program("", {}, None, strict={"shape": "error"})
    with pytest.raises(AoaError, match="strict maps"):
        compile_program("", {}, None, strict={"missing": "maybe"})
    with pytest.raises(AoaError, match="strict must be a bool or a dictionary, not 'error'"):
        compile_program("", {}, None, strict="error")  # type: ignore[arg-type]
