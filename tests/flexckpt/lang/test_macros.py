# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Macros against NumPy written from their definitions: ids, stars, arrays, fused tensors, parts."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import flexckpt
from flexckpt.errors import AoaError
from flexckpt.lang import compile_program
from flexckpt.model import TensorSpec
from tests.flexckpt.lang.evaluate import evaluate, numbers, spec, specs

_Arrays = Mapping[str, np.ndarray]


def _run(
    aoa: str,
    source: _Arrays,
    dest: Mapping[str, TensorSpec] | None = None,
    **options: object,
) -> dict[str, np.ndarray]:
    options.setdefault("strict", {"unexpected": "ignore"})
    described = options.pop("specs", specs(source))
    program = compile_program(aoa, described, dest, **options)  # type: ignore[arg-type]
    return {name: evaluate(v, source) for name, v in program.outputs.items()}


def _heads(array: np.ndarray, n: int, axis: int) -> list[np.ndarray]:
    return np.split(array, n, axis)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (6, 3), (8, 1), (1, 1)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_fused_qkv(heads: int, groups: int, axis: int) -> None:
    def shape(n: int) -> tuple[int, int]:
        return (n * 2, 3) if axis == 0 else (3, n * 2)

    source = numbers(q=shape(heads), k=shape(groups), v=shape(groups))
    q, k, v = (
        _heads(source[name], n, axis) for name, n in (("q", heads), ("k", groups), ("v", groups))
    )
    width = heads // groups
    order = [part for g in range(groups) for part in (*q[g * width : (g + 1) * width], k[g], v[g])]
    options = f"fused_qkv, num_heads={heads}, num_key_value_groups={groups}, axis={axis}"
    out = _run(f"q, k, v -> f, {options}", source)
    assert np.array_equal(out["f"], np.concatenate(order, axis))
    alias = options.replace("num_key_value_groups", "num_kv_heads")
    back = _run(f"f -> q, k, v, {alias}", out)
    for name, array in source.items():
        assert np.array_equal(back[name], array)


def _blocks(parts: list[np.ndarray], degree: int, axis: int) -> np.ndarray:
    """``[A_r | B_r | ...]`` for every rank."""
    cut = [np.split(part, degree, axis) for part in parts]
    return np.concatenate([c[r] for r in range(degree) for c in cut], axis)


@pytest.mark.parametrize("degree", [1, 2, 3, 6])
@pytest.mark.parametrize("axis", [0, 1])
def test_fused_ffn(degree: int, axis: int) -> None:
    source = numbers(g=(6, 6), u=(6, 6))
    shape = (12, 6) if axis == 0 else (6, 12)
    fused = _blocks([source["g"], source["u"]], degree, axis)
    dest = {"f": spec(shape, parts=degree, axis=axis)}
    note = "fused_ffn" if axis == 1 else f"fused_ffn, axis={axis}"
    assert np.array_equal(_run(f"g, u -> f, {note}", source, dest)["f"], fused)
    assert np.array_equal(_run(f"g, u -> f, {note}, tp={degree}", source)["f"], fused)
    back = _run(f"f -> g, u, {note}", {"f": fused}, specs=dest)
    reverse = _run(f"g, u -> f, {note}", {"f": fused}, specs(source), specs=dest, reverse=True)
    tree = _run(f"g, u -> f, {note}", {"f": fused}, specs=dest, reverse=True)
    for got in (back, reverse, tree):
        assert np.array_equal(got["g"], source["g"])
        assert np.array_equal(got["u"], source["u"])


@pytest.mark.parametrize("there", [1, 2, 3, 4])
@pytest.mark.parametrize("here", [1, 2, 3, 4])
def test_fused_ffn_from_one_layout_to_another(there: int, here: int) -> None:
    gate, up = numbers(g=(2, 12), u=(2, 12)).values()
    source = {"f": _blocks([gate, up], there, 1)}
    want = _blocks([gate, up], here, 1)
    sides = {"f": spec((2, 24), parts=there, axis=1)}, {"f": spec((2, 24), parts=here, axis=1)}
    out = _run("f -> f, fused_ffn", source, sides[1], specs=sides[0])
    assert np.array_equal(out["f"], want)
    out = _run(f"f -> f, fused_ffn, tp=[{there},{here}]", source)
    assert np.array_equal(out["f"], want)
    back = _run("f -> f, fused_ffn", {"f": want}, sides[0], specs=sides[1], reverse=True)
    assert np.array_equal(back["f"], source["f"])
    back = _run(f"f -> f, fused_ffn, tp=[{there},{here}]", {"f": want}, reverse=True)
    assert np.array_equal(back["f"], source["f"])


@pytest.mark.parametrize("degree", [1, 2, 4])
def test_fused_qkv_old(degree: int) -> None:
    source = numbers(q=(3, 16), k=(3, 8), v=(3, 8))
    fused = _blocks(list(source.values()), degree, 1)
    dest = {"f": spec((3, 32), parts=degree, axis=1)}
    note = "fused_qkv_old, num_heads=8, num_kv_heads=4"
    assert np.array_equal(_run(f"q, k, v -> f, {note}", source, dest)["f"], fused)
    back = _run(f"f -> q, k, v, {note}", {"f": fused}, specs=dest)
    for name, array in source.items():
        assert np.array_equal(back[name], array)
    other = _run(f"f -> f, {note}, tp=[{degree},2]", {"f": fused})["f"]
    assert np.array_equal(other, _blocks(list(source.values()), 2, 1))


def test_layout_torch_makes_axis_0_the_default() -> None:
    source = numbers(g=(2, 3), u=(2, 3), b=(4,), c=(4,))
    out = _run("g, u -> f, fused_ffn\nb, c -> d, fused_ffn", source, layout="torch")
    assert out["f"].shape == (4, 3)
    assert out["d"].shape == (8,)
    assert _run("g, u -> f, fused_ffn", source)["f"].shape == (2, 6)


# Where the destination of the fused tensor is found: its own name, or through renames.
_PATHS = {
    "": ("f", 1, (4, 8)),
    "f -> x": ("x", 1, (4, 8)),
    "f -> x x -> y": ("y", 1, (4, 8)),
    "f -> x, axis=1 x -> y, axis=0": ("y", 1, (4, 8)),
    "f^T -> x": ("x", 0, (8, 4)),
    "f -> x, permute='[1,0]'": ("x", 0, (8, 4)),
    "f^T -> x x^T -> y": ("y", 1, (4, 8)),
    "f, h -> x, axis=0": ("x", 1, (8, 8)),
    "f, h -> x, stack=0": ("x", 2, (2, 4, 8)),
    "f, h -> x, stack=-1": ("x", 1, (4, 8, 2)),
    "f, h -> x, stack, axis=1 x -> y, permute='[2,0,1]'": ("y", 0, (8, 4, 2)),
}


@pytest.mark.parametrize("path", _PATHS)
def test_parts_are_found_through_renames(path: str) -> None:
    source = numbers(g=(4, 4), u=(4, 4), h=(4, 8))
    name, axis, shape = _PATHS[path]
    dest = {name: spec(shape, parts=2, axis=axis)}
    got = _run(f"g, u -> f, fused_ffn {path}", source, dest)[name]
    want = _run(f"g, u -> f, fused_ffn, tp=2 {path}", source)[name]
    assert np.array_equal(got, want)
    plain = _run(f"g, u -> f, fused_ffn, tp=1 {path}", source)[name]
    assert not np.array_equal(got, plain)
    across = {name: spec(shape, parts=2, axis=(axis + 1) % len(shape))}
    got = _run(f"g, u -> f, fused_ffn {path}", source, across)[name]
    assert np.array_equal(got, plain)


def test_parts_of_the_source_are_found_through_renames() -> None:
    source = numbers(f=(8, 2))
    described = {"f": spec((8, 2), parts=2, axis=0)}
    want = _run("f -> g, u, fused_ffn, axis=0, tp=2", source)
    got = _run("f -> x x^T -> y y^T -> g, u, fused_ffn, axis=0", source, specs=described)
    for name in "gu":
        assert np.array_equal(got[name], want[name])


_AMBIGUOUS = {
    "g, u -> f, fused_ffn f, h -> x, axis=1": spec((4, 16), parts=2, axis=1),
    "g, u -> f, fused_ffn f -> x, reshape='[32]'": spec((32,), parts=2),
    "g, u -> f, fused_ffn f -> x, y, axis=0": spec((2, 8), parts=2, axis=1),
    "g, u -> x, fused_ffn": TensorSpec((4, 8), torch.float64, (((0, 0), (4, 5)), ((0, 5), (4, 3)))),
}


@pytest.mark.parametrize("aoa", _AMBIGUOUS)
def test_ambiguous_parts_are_an_error(aoa: str) -> None:
    source = numbers(g=(4, 4), u=(4, 4), h=(4, 8))
    dest = {"x": _AMBIGUOUS[aoa]}
    with pytest.raises(AoaError, match="state tp=") as caught:
        _run(aoa, source, dest)
    assert caught.value.code == "AOA204"
    _run(aoa.replace("fused_ffn", "fused_ffn, tp=2"), source, dest)


def test_replicas_and_empty_shards_do_not_count() -> None:
    source = numbers(g=(2, 2), u=(2, 2))
    boxes = (((0, 0), (2, 2)), ((0, 2), (2, 2)), ((0, 2), (2, 2)), ((0, 4), (2, 0)))
    dest = {"f": TensorSpec((2, 4), torch.float64, boxes)}
    assert _run("g, u -> f, fused_ffn", source, dest)["f"].tolist() == [[0, 4, 1, 5], [2, 6, 3, 7]]


def test_ids_are_matched_together() -> None:
    """Layers may have different experts; a product of layers and experts would ask for too many."""
    source = numbers(l0__e0=(1,), l0__e1=(1,), l7__e10=(1,), l7__e2=(1,), other=(1,))
    out = _run("l$LAYER_ID.e$EXPERT_ID -> x.$EXPERT_ID.$LAYER_ID", source)
    assert list(out) == ["other", "x.0.0", "x.1.0", "x.2.7", "x.10.7"]
    assert out["x.10.7"] == source["l7.e10"]


def test_ids_keep_their_zeros() -> None:
    source = numbers(a__00=(1,), a__01=(1,), a__10=(1,))
    assert list(_run("a.$LAYER_ID -> b.$LAYER_ID", source)) == ["b.00", "b.01", "b.10"]


def test_a_placeholder_twice_in_a_name() -> None:
    source = numbers(a__1__x1=(1,), a__1__x2=(1,), a__2__x2=(1,))
    out = _run("a.$LAYER_ID.x$LAYER_ID -> b.$LAYER_ID", source)
    assert set(out) == {"a.1.x2", "b.1", "b.2"}


def test_a_placeholder_beside_digits() -> None:
    source = numbers(a123=(1,), a13=(1,), b13=(1,))
    assert set(_run("a1$LAYER_ID -> x.$LAYER_ID", source)) == {"x.23", "x.3", "b13"}
    assert set(_run("a$LAYER_ID$EXPERT_ID -> x.$LAYER_ID.$EXPERT_ID", numbers(a12=(1,)))) == {
        "x.1.2"
    }


def test_ids_of_names_written_before() -> None:
    source = numbers(a__0=(2, 3), a__5=(2, 3))
    aoa = "a.$LAYER_ID -> t.$LAYER_ID t.$LAYER_ID^T -> u.$LAYER_ID u.* -> x, axis=0"
    out = _run(aoa, source)
    assert out.keys() == {"x"}
    assert np.array_equal(out["x"], np.concatenate([source["a.0"].T, source["a.5"].T]))


def test_the_source_goes_before_names_written_before() -> None:
    """As Paddle, which knows the names of the source only."""
    source = numbers(m__1=(1,), m__2=(1,))
    aoa = "m.$LAYER_ID_OFFSET -> m.$LAYER_ID_OFFSET m.$LAYER_ID -> x.$LAYER_ID"
    out = _run(aoa, source)
    assert out.keys() == {"m.0", "x.1", "x.2"}
    assert out["x.1"] == source["m.2"]


def test_ids_on_the_right_come_from_the_destination() -> None:
    source = numbers(a=(2,))
    dest = {"b.1": spec((2,)), "b.12": spec((2,)), "c.0": spec((5,))}
    program = compile_program("a -> b.$LAYER_ID _ -> c.$LAYER_ID", specs(source), dest, strict=True)
    assert program.outputs.keys() == {"b.1", "b.12"}
    assert program.kept == {"c.0"}


def test_one_operand_for_all_ids() -> None:
    source = numbers(a=(1,), b__0=(1,), b__1=(1,))
    out = _run("a, b.$LAYER_ID -> c.$LAYER_ID, axis=0", source)
    assert {name: v.tolist() for name, v in out.items()} == {"c.0": [0, 1], "c.1": [0, 2]}


def test_deleting_by_pattern() -> None:
    source = numbers(a__0=(1,), a__1=(1,), b=(1,))
    program = compile_program("a.$LAYER_ID -> _", specs(source), None)
    assert program.dropped == {"a.0", "a.1"}
    assert set(program.outputs) == {"b"}
    assert compile_program("a.* -> _", specs(source), None).dropped == {"a.0", "a.1"}


def test_stars_go_by_number() -> None:
    source = numbers(**{f"e__{i}__w": (1, 2) for i in (10, 9, 0, 100)})
    out = _run("e.*.w^T -> x, axis=1", source)
    order = [source[f"e.{i}.w"].T for i in (0, 9, 10, 100)]
    assert np.array_equal(out["x"], np.concatenate(order, 1))


def test_stars_within_ids() -> None:
    source = numbers(l0__e1=(1,), l0__e0=(1,), l1__e0=(1,), l1__e1=(1,))
    out = _run("l$LAYER_ID.e* -> l$LAYER_ID, axis=0", source)
    assert {name: v.tolist() for name, v in out.items()} == {"l0": [1, 0], "l1": [2, 3]}
    dest = {f"l{i}.e{j}": spec((1,)) for i in range(2) for j in range(2)}
    back = _run("l$LAYER_ID -> l$LAYER_ID.e*, axis=0", out, dest)
    assert back == source
    for described in (dest, None):
        aoa = "l$LAYER_ID.e* -> l$LAYER_ID, axis=0"
        if described is None:
            with pytest.raises(AoaError, match="needs a description"):
                _run(aoa, out, reverse=True)
        else:
            assert _run(aoa, out, described, reverse=True) == source


def test_stars_on_the_way_back_over_renamed_tensors() -> None:
    """The inverse comes from the evaluated pieces, so unequal parts and stars are exact."""
    source = numbers(e__0=(1, 2), e__1=(3, 2), e__2=(2, 2))
    aoa = "e.* -> t, axis=0 t^T -> x"
    there = _run(aoa, source)
    back = _run(aoa, there, specs(source), reverse=True)
    for name, array in source.items():
        assert np.array_equal(back[name], array)


def test_arrays() -> None:
    source = numbers(q=(4, 2))
    out = _run("q -> r[1:3].w, axis=0 r[1:3].w^T -> s, axis=1", source)
    assert np.array_equal(out["s"], source["q"].T)
    assert set(_run("q -> r[1:3].w, axis=0", source)) == {"r_1.w", "r_2.w"}


def test_offset_with_experts_and_back() -> None:
    source = numbers(m__1__0=(1,), m__2__0=(1,), m__2__1=(1,))
    aoa = "m.$LAYER_ID_OFFSET.$EXPERT_ID -> n.$LAYER_ID_OFFSET.$EXPERT_ID"
    out = _run(aoa, source)
    assert {name: float(v[0]) for name, v in out.items()} == {"n.0.0": 0, "n.1.0": 1, "n.1.1": 2}
    assert _run(aoa, out, specs(source), reverse=True) == source
    assert _run(aoa, out, reverse=True) == source


def test_temporaries_of_macros_are_no_names() -> None:
    """A tensor may have the name that a temporary is printed with."""
    source = numbers(w=(2, 1), k=(2, 1), v=(2, 1), w1=(1, 1), w_transpose_tmp=(1, 1))
    aoa = (
        "w, k, v -> f, fused_qkv, num_heads=2, num_kv_heads=2, axis=0\n"
        "w^T -> x\nw_transpose_tmp -> y\nw1 -> z"
    )
    out = _run(aoa, source)
    assert np.array_equal(out["y"], source["w_transpose_tmp"])
    assert np.array_equal(out["z"], source["w1"])


def test_expand_prints_temporaries_like_paddle() -> None:
    given = {name: TensorSpec((4, 4), torch.float32) for name in ("q", "k", "v", "g", "u")}
    aoa = "q^T, k^T, v -> f, fused_qkv, num_heads=2, num_key_value_groups=1"
    assert flexckpt.expand(aoa, given) == [
        'q -> q_transpose_tmp, permute = "[]"',
        'k -> k_transpose_tmp, permute = "[]"',
        "q_transpose_tmp -> q_transpose_tmp0, q_transpose_tmp1, axis=1",
        "k_transpose_tmp -> k_transpose_tmp0, axis=1",
        "v -> v0, axis=1",
        "q_transpose_tmp0, q_transpose_tmp1, k_transpose_tmp0, v0 -> f, axis=1",
    ]
    assert flexckpt.expand("g, u -> f, fused_ffn", given, {"f": spec((4, 8), parts=2, axis=1)}) == [
        "g, u -> g.u.tmp, axis=1",
        "g.u.tmp -> fused_ffn_tmp.GATE_0, fused_ffn_tmp.GATE_1, fused_ffn_tmp.UP_0, "
        "fused_ffn_tmp.UP_1, axis=1",
        "fused_ffn_tmp.GATE_0, fused_ffn_tmp.UP_0, fused_ffn_tmp.GATE_1, fused_ffn_tmp.UP_1 -> f, "
        "axis=1",
    ]
    assert flexckpt.expand("g -> _ _ -> h g^T, g^T -> x, axis=0", given) == [
        "g -> _",
        "_ -> h",
        'g -> g_transpose_tmp, permute = "[]"',
        "g_transpose_tmp, g_transpose_tmp -> x, axis=0",
    ]


def test_unmatched_patterns_may_be_allowed() -> None:
    source = numbers(a=(1,))
    aoa = "zz.$LAYER_ID -> y.$LAYER_ID"
    program = compile_program(aoa, specs(source), None, strict={"unmatched": "ignore"})
    assert program.outputs.keys() == {"a"}
    assert program.unmatched == ("zz.$LAYER_ID matches no tensor of the source",)
    with pytest.warns(UserWarning, match="matches no tensor"):
        compile_program(aoa, specs(source), None, strict={"unmatched": "warn"})


def test_expand_does_not_need_an_axis() -> None:
    given = {"q": TensorSpec((4, 4), torch.float32)}
    assert flexckpt.expand("q -> r[0:2]", given) == ["q -> r_0, r_1"]
