# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.transform: states, casts, views, what is kept or missing, copies on the way back."""

import pytest
import torch

import flexckpt
from flexckpt.errors import AoaError, CheckpointError, LayoutError
from flexckpt.model import TensorSpec

_BF16, _F32 = torch.bfloat16, torch.float32


def _count(*shape: int, start: int = 0, dtype: torch.dtype = _F32) -> torch.Tensor:
    n = torch.Size(shape).numel()
    return torch.arange(start, start + n, dtype=torch.float64).reshape(shape).to(dtype)


def test_states_follow_their_weight_but_not_its_casts() -> None:
    source = {
        "a": _count(2, 3),
        "a.w_0": _count(2, 3) + 0.001,
        "a.moment1_0": _count(2, 3) + 0.5,
        "a@exp_avg_sq": _count(2, 3) + 1 / 3,
    }
    out = flexckpt.transform(source, "a^T -> b b -> b, dtype='bfloat16'")
    assert out.keys() == {"b", "b.w_0", "b.moment1_0", "b@exp_avg_sq"}
    assert torch.equal(out["b"], source["a"].T.to(_BF16))
    for suffix in (".w_0", ".moment1_0", "@exp_avg_sq"):
        assert out["b" + suffix].dtype == _F32
        assert torch.equal(out["b" + suffix], source["a" + suffix].T)


def test_states_alone() -> None:
    source = {"a.moment1_0": _count(2, 4), "a.moment2_0": _count(2, 4, start=8)}
    dest = {"x.moment1_0": TensorSpec((4, 2), _F32), "x@exp_avg_sq": TensorSpec((4, 2), _F32)}
    out = flexckpt.transform(source, "a^T -> x", dest)
    assert torch.equal(out["x.moment1_0"], source["a.moment1_0"].T)
    assert torch.equal(out["x@exp_avg_sq"], source["a.moment2_0"].T)


def test_scalars_of_merged_parameters_must_agree() -> None:
    source = {"a": _count(2), "b": _count(2), "a@step": torch.tensor(7), "b@step": torch.tensor(7)}
    out = flexckpt.transform(source, "a, b -> c, axis=0")
    assert out["c@step"].item() == 7
    source["b@step"] = torch.tensor(8)
    with pytest.raises(CheckpointError, match="cannot be both 7 of a and 8 of b") as caught:
        flexckpt.transform(source, "a, b -> c, axis=0")
    assert caught.value.code == "CKP203"


def test_a_state_that_one_of_the_sources_lacks() -> None:
    source = {"a": _count(2), "b": _count(2), "a@exp_avg": _count(2)}
    with pytest.raises(AoaError, match="b has no exp_avg"):
        flexckpt.transform(source, "a, b -> c, axis=0")
    dest = {"c": TensorSpec((4,), _F32)}
    assert flexckpt.transform(source, "a, b -> c, axis=0", dest).keys() == {"c"}


def test_a_cast_goes_through_every_dtype() -> None:
    source = {"a": torch.tensor([1.0 + 2**-12, 3.0])}
    out = flexckpt.transform(source, "a -> b, dtype='bfloat16' b -> b, dtype='float32'")
    assert out["b"].tolist() == [1.0, 3.0]
    assert out["b"].dtype == _F32


def test_a_cast_and_back() -> None:
    aoa = "a -> b, src_dtype='bfloat16', dst_dtype='float32'"
    source = {"a": _count(3, dtype=_BF16)}
    there = flexckpt.transform(source, aoa)
    assert there["b"].dtype == _F32
    for dest in ({"a": TensorSpec((3,), _BF16)}, None):
        back = flexckpt.transform(there, aoa, dest, reverse=True)
        assert back["a"].dtype == _BF16
        assert torch.equal(back["a"], source["a"])


@pytest.mark.parametrize("dtype", [_BF16, torch.float16, torch.int64, torch.bool, torch.uint8])
def test_any_dtype_is_copied(dtype: torch.dtype) -> None:
    source = {"a": _count(2, 3, dtype=dtype), "b": _count(4, 3, dtype=dtype)}
    out = flexckpt.transform(source, "a, b -> c, axis=0")
    assert torch.equal(out["c"], torch.cat([source["a"], source["b"]]))
    assert out["c"].dtype == dtype


def test_views_are_read_as_they_are() -> None:
    base = _count(6, 8)
    views = {
        "a": base.T,
        "b": base[1::2, ::3],
        "c": base[0].expand(3, 8),
        "d": base[2:, 5:],
    }
    out = flexckpt.transform(views, "a^T -> a b^T -> b c^T -> c")
    for name, view in views.items():
        want = view if name == "d" else view.T
        assert torch.equal(out[name], want)
        assert out[name].data_ptr() != view.data_ptr()


def test_zero_dimensions_and_empty_tensors() -> None:
    source = {"s": torch.tensor(3.0), "t": torch.tensor(4.0), "e": torch.empty(0, 4)}
    out = flexckpt.transform(source, "s, t -> v, stack=0 e^T -> e e -> p, q, axis=0")
    assert out["v"].tolist() == [3.0, 4.0]
    assert out["p"].shape == (2, 0)
    back = flexckpt.transform(
        out,
        "s, t -> v, stack=0 e^T -> e e -> p, q, axis=0",
        {name: TensorSpec(tuple(t.shape), _F32) for name, t in source.items()},
        reverse=True,
    )
    assert {n: (t.shape, t.tolist()) for n, t in back.items()} == {
        n: (t.shape, t.tolist()) for n, t in source.items()
    }


def test_kept_and_missing_destinations_are_absent() -> None:
    source = {"a": _count(2)}
    dest = {"a": TensorSpec((2,), _F32), "b": TensorSpec((9,), _F32)}
    assert flexckpt.transform(source, "_ -> b", dest).keys() == {"a"}
    with pytest.raises(AoaError, match="b of the destination has no source"):
        flexckpt.transform(source, "", dest)
    assert flexckpt.transform(source, "", dest, strict=False).keys() == {"a"}
    with pytest.warns(UserWarning, match="b of the destination"):
        flexckpt.transform(source, "", dest, strict={"missing": "warn"})


def test_unused_tensors_are_no_error_unless_asked() -> None:
    source = {"a": _count(2), "b": _count(2)}
    dest = {"a": TensorSpec((2,), _F32)}
    assert flexckpt.transform(source, "", dest).keys() == {"a"}
    with pytest.raises(AoaError) as caught:
        flexckpt.transform(source, "", dest, strict={"unexpected": "error"})
    assert caught.value.code == "AOA308"
    flexckpt.transform(source, "b -> _", dest, strict={"unexpected": "error"})


def test_every_copy_is_filled() -> None:
    source = {"a": _count(2, 3)}
    out = flexckpt.transform(source, "a -> x a^T -> y a -> z[0:2], axis=0")
    assert torch.equal(out["x"], source["a"])
    assert torch.equal(out["y"], source["a"].T)
    assert torch.equal(out["z_1"], source["a"][1:])


def test_copies_must_be_equal_on_the_way_back() -> None:
    aoa = "a -> x a^T -> y a -> z[0:2], axis=0"
    source = {"a": _count(2, 3)}
    source["a"][0, 0] = float("nan")
    dest = {"a": TensorSpec((2, 3), _F32)}
    there = flexckpt.transform(source, aoa)
    back = flexckpt.transform(there, aoa, dest, reverse=True)
    assert torch.equal(back["a"].nan_to_num(-1), source["a"].nan_to_num(-1))
    there["z_1"][0, 2] += 1
    with pytest.raises(AoaError, match="z_1 holds a copy of it that differs") as caught:
        flexckpt.transform(there, aoa, dest, reverse=True)
    assert caught.value.code == "AOA401"


def test_what_unpad_cut_off_comes_back_as_zeros() -> None:
    aoa = "a -> b, unpad=3, axis=0"
    source = {"a": _count(5, 2)}
    there = flexckpt.transform(source, aoa)
    assert torch.equal(there["b"], source["a"][:3])
    back = flexckpt.transform(there, aoa, {"a": TensorSpec((5, 2), _F32)}, reverse=True)
    assert torch.equal(back["a"][:3], source["a"][:3])
    assert (back["a"][3:] == 0).all()


def test_padding_is_not_read_on_the_way_back() -> None:
    aoa = "a -> b, pad=8, axis=-2"
    source = {"a": _count(5, 2), "a@exp_avg": _count(5, 2)}
    there = flexckpt.transform(source, aoa)
    assert there["b"].shape == (8, 2)
    assert (there["b@exp_avg"][5:] == 0).all()
    there["b"][5:] = 9
    dest = {"a": TensorSpec((5, 2), _F32), "a@exp_avg": TensorSpec((5, 2), _F32)}
    back = flexckpt.transform(there, aoa, dest, reverse=True)
    assert torch.equal(back["a"], source["a"])
    assert torch.equal(back["a@exp_avg"], source["a@exp_avg"])


def test_rotary_layout_by_reshape() -> None:
    """Rows of every head from interleaved to halved."""
    source = {"q": _count(8, 2)}
    aoa = """
        q -> r, reshape='[2,2,2,2]'  # head, pair, part, column
        r -> r, permute='[0,2,1,3]'
        r -> q, reshape='[8,2]'
    """
    out = flexckpt.transform(source, aoa)
    assert torch.equal(out["q"], source["q"][[0, 2, 1, 3, 4, 6, 5, 7]])


def test_specs_must_fit_the_tensors() -> None:
    with pytest.raises(LayoutError, match="its spec says"):
        flexckpt.transform({"a": _count(2)}, "", source_specs={"a": TensorSpec((3,), _F32)})
    with pytest.raises(LayoutError, match="a must be a tensor, not list"):
        flexckpt.transform({"a": [1, 2]}, "")  # type: ignore[dict-item]
    with pytest.raises(LayoutError, match="but a has shape"):
        flexckpt.transform({"a": _count(2), "a.moment1_0": _count(3)}, "")
    with pytest.raises(LayoutError, match=r"but exp_avg of a is torch\.float32"):
        flexckpt.transform(
            {"a": _count(2), "a@exp_avg": _count(2)},
            "",
            {"a@exp_avg": TensorSpec((2,), _BF16)},
        )
    boxes = (((1,), (2,)),)
    with pytest.raises(LayoutError, match="leaves the shape"):
        flexckpt.transform({"a": _count(2)}, "", {"a": TensorSpec((2,), _F32, boxes)})


def test_gradients_and_parameters() -> None:
    source = {"a": torch.nn.Parameter(_count(2, 2))}
    out = flexckpt.transform(source, "a^T -> b")["b"]
    assert not out.requires_grad
    assert torch.equal(out, source["a"].detach().T)
