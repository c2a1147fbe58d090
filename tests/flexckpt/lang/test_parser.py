# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Text to tree: the grammar, places, and that no text gives anything but a tree or an AoaError."""

from importlib import resources

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lark import Lark, LarkError

from flexckpt.errors import AoaError
from flexckpt.lang import compile_program
from flexckpt.lang.parser import parse
from flexckpt.lang.tree import Statement, Text


def _parse(aoa: str | list[str]) -> list[Statement]:
    return parse(Text(aoa))


def _shape(aoa: str | list[str]) -> list[tuple[list[str], list[str], dict[str, object]]]:
    """Names and attributes of the statements."""
    return [
        (
            [n.text + "^T" * n.transposed for n in s.left],
            [n.text for n in s.right] + ([s.flag] if s.flag else []),
            {a.key: a.value for a in s.attributes},
        )
        for s in _parse(aoa)
    ]


def test_names_and_attributes() -> None:
    aoa = "a.$LAYER_ID.w^T, _b*2 -> c, fused_qkv, axis=-1, num_heads=4"
    assert _shape(aoa) == [
        (
            ["a.$LAYER_ID.w^T", "_b*2"],
            ["c", "fused_qkv"],
            {"axis": -1, "num_heads": 4},
        )
    ]


def test_values_of_attributes() -> None:
    assert _shape("a -> b, permute='[1, 0]'") == [(["a"], ["b"], {"permute": (1, 0)})]
    assert _shape('a -> b, permute="(1,0,)"') == [(["a"], ["b"], {"permute": (1, 0)})]
    assert _shape("a -> b, permute=[ 1 ,0 ]") == [(["a"], ["b"], {"permute": (1, 0)})]
    assert _shape("a -> b, permute='[]'") == [(["a"], ["b"], {"permute": ()})]
    assert _shape("a -> b, permute=[]") == [(["a"], ["b"], {"permute": ()})]
    assert _shape("a -> b, dst_dtype='float32', src_dtype=\"bfloat16\"") == [
        (["a"], ["b"], {"dst_dtype": "float32", "src_dtype": "bfloat16"})
    ]


def test_statements_need_no_separator() -> None:
    want = [(["a"], ["x"], {"axis": 0}), (["b"], ["y"], {}), (["c"], ["z"], {})]
    assert _shape("a -> x, axis=0b -> y\nc->z") == want
    assert _shape(["a -> x, axis=0", "b -> y c -> z"]) == want
    assert _shape("a -> x, permute='[0]'b -> y") == [
        (["a"], ["x"], {"permute": (0,)}),
        (["b"], ["y"], {}),
    ]


def test_a_statement_runs_on_over_lines_but_not_over_entries() -> None:
    assert _shape("a,\n  b\n->\tc,\r\n  axis=0") == [(["a", "b"], ["c"], {"axis": 0})]
    with pytest.raises(AoaError):
        _parse(["a,", "b -> c"])


def test_comments_and_blank_text() -> None:
    assert _shape("# a -> b\na -> c # , d -> e\n#") == [(["a"], ["c"], {})]
    for nothing in ("", "\n \t\r\n", "# only\n", [], [""]):
        assert _parse(nothing) == []


def test_quoted_names() -> None:
    aoa = """ "vision-tower/x:0"^T, 'a b' -> "fused_ffn", axis=0 '#' -> _ """
    assert _shape(aoa) == [
        (["vision-tower/x:0^T", "a b"], ["fused_ffn"], {"axis": 0}),
        (["#"], ["_"], {}),
    ]


def test_arrays() -> None:
    (statement,) = _parse("q[0:12].w^T -> 'x/y'[3:5], axis=0")
    (left,), (right,) = statement.left, statement.right
    assert (left.text, left.array, left.suffix, left.transposed) == ("q", (0, 12), ".w", True)
    assert (right.text, right.array, right.suffix, right.quoted) == ("x/y", (3, 5), "", True)


def test_places() -> None:
    text = " a , bb^T ->\n c[0:2].x,axis= 1"
    (statement,) = _parse(text)
    places = [*statement.left, *statement.right, *statement.attributes]
    got = [text[p.span.start : p.span.stop] for p in places]
    assert got == ["a", "bb^T", "c[0:2].x", "axis= 1"]
    assert text[statement.span.start : statement.span.stop] == text.strip()


def test_alike_statements_keep_their_own_texts() -> None:
    lines = [f"l.{i}.a, l.{i}.b -> m.{i}, axis={i}" for i in range(3)]
    assert _shape(lines) == [([f"l.{i}.a", f"l.{i}.b"], [f"m.{i}"], {"axis": i}) for i in range(3)]


_WORDS = "a b.c x^T _ e.*.w l.$LAYER_ID fused_ffn fused_qkv stack axis sizes"
_SIGNS = """'q_r' "[1,0]" ' .w ^T 0 -1 17 99999999999999999999 -> -> -> = : [ ] , , # ä ;"""
_TOKENS = [*_WORDS.split(), *_SIGNS.split(), " ", "\n", "# c\n", "\t", "\x00"]


def _error_of(text: str) -> AoaError | None:
    """What parsing, or compiling without any tensors, raises."""
    try:
        compile_program(text, {}, None, strict=False)
    except AoaError as error:
        return error
    return None


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(_TOKENS), max_size=24).map("".join))
@example("a[0:0].w^T->b")
@example("->")
def test_any_text_gives_a_program_or_an_error(text: str) -> None:
    error = _error_of(text)
    if error is not None:
        assert error.line is not None
        assert error.column is not None
        line = text.split("\n")[error.line - 1]
        assert error.column <= max(1, len(line))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40))
def test_any_characters(text: str) -> None:
    error = _error_of(text)
    assert error is None or error.code.startswith("AOA")


_WHOLE = Lark(
    resources.files("flexckpt.lang").joinpath("grammar.lark").read_text("utf-8"),
    parser="lalr",
    start="program",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(_TOKENS), max_size=24).map(" ".join))
def test_the_grammar_as_a_whole_says_the_same(text: str) -> None:
    try:
        count = len(_WHOLE.parse(text).children)
    except LarkError:
        count = None
    error = _error_of(text)
    if count is None:
        assert error is not None
        assert error.code in ("AOA101", "AOA102", "AOA103", "AOA104", "AOA203")
    elif error is None:
        assert len(_parse(text)) == count
    else:  # what the grammar allows may still fail for what a word means
        assert error.code != "AOA101"
        assert error.code != "AOA102" or "was expected" not in error.message
