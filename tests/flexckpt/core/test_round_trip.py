# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What is saved comes back, whatever its dtype, shape, memory and parts; in one process."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flexckpt
from flexckpt import CheckpointError, FlexckptError, LayoutError, Shard
from flexckpt.io.safetensors_file import DTYPES
from flexckpt.testing import write_checkpoint
from tests.flexckpt.core.parts import FULL_SHAPES, SHAPES, Part, cut, partitions, shard, strided

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def some(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Random bytes as a tensor, so that every bit counts; bools and scale bytes stay valid."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    data = torch.randint(0, 2 if dtype == torch.bool else 120, (count * dtype.itemsize,))
    return data.to(torch.uint8).view(dtype).view(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit by bit."""
    sides = [t.resolve_conj().contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*sides)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_and_odd_shapes(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes: list[tuple[int, ...]] = [(), (1,), (7,), (0,), (3, 0, 2), (5, 3), (2, 3, 5), (1, 1, 4)]
    state = {f"t{n}": some(dtype, *shape) for n, shape in enumerate(shapes)}
    state["turned"] = some(dtype, 4, 6).t()
    state["spread"] = some(dtype, 6, 10)[1::2, 2:9:3]
    state["expanded"] = some(dtype, 3, 1).expand(3, 4)
    flexckpt.save({"a": {"b": state}, "c": state["turned"]}, tmp_path / "ck")
    targets = {name: torch.zeros(t.shape, dtype=dtype) for name, t in state.items()}
    turned = strided(state["turned"], (1, 0), 2)
    report = flexckpt.load({"a": {"b": targets}, "c": turned}, tmp_path / "ck")
    for name, tensor in state.items():
        assert same(targets[name], tensor), name
    assert same(turned, state["turned"])
    assert (report.missing, report.unexpected, report.kept) == ([], [], [])


def test_dtypes_without_a_name_in_the_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"CKP109.*'w#0'.*complex128"):
        flexckpt.save({"w": torch.zeros(2, dtype=torch.complex128)}, tmp_path / "ck")
    assert not list(tmp_path.iterdir())


def test_values_that_are_lazily_conjugated(tmp_path: Path) -> None:
    plain = torch.randn(4, 3, dtype=torch.complex64)
    flexckpt.save({"c": plain.conj(), "n": plain.conj().imag}, tmp_path / "ck")
    back, negative = torch.zeros_like(plain), torch.zeros(4, 3)
    hidden = torch.zeros_like(plain)
    flexckpt.load({"c": back, "n": negative}, tmp_path / "ck")
    assert torch.equal(back, plain.conj().resolve_conj())
    assert torch.equal(negative, -plain.imag)
    flexckpt.load({"c": hidden.conj(), "n": negative}, tmp_path / "ck")
    assert torch.equal(hidden, plain)


def test_parameters_and_lists_of_shards(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    want = {name: t.detach().clone() for name, t in module.named_parameters()}
    flexckpt.save(dict(module.named_parameters()), tmp_path / "ck")
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    flexckpt.load(dict(module.named_parameters()), tmp_path / "ck")
    assert torch.equal(module.weight, want["weight"])
    assert torch.equal(module.bias, want["bias"])
    other = torch.nn.Linear(3, 2)
    flexckpt.load(
        [Shard("weight", other.weight, (2, 3), (0, 0)), Shard("bias", other.bias, (2,), (0,))],
        tmp_path / "ck",
    )
    assert torch.equal(other.weight, want["weight"])
    assert other.weight.requires_grad


def test_numbers_of_numpy(tmp_path: Path) -> None:
    n = np.int64
    shard = Shard("w", torch.arange(3.0), (n(2), n(3)), np.array([1, 0]), (n(1), 3), (n(0), n(3)))
    rest = Shard("w", torch.arange(3.0, 6.0), np.array([2, 3]), (n(0), n(0)), (1, 3), (0, 3))
    flexckpt.save([shard, rest], tmp_path / "ck")
    target = torch.zeros(2, 3)
    flexckpt.load({"w": target}, tmp_path / "ck")
    assert target.tolist() == [[3.0, 4.0, 5.0], [0.0, 1.0, 2.0]]
    for wrong in (
        {"offset": (0.0, 0)},
        {"offset": None},
        {"flat_range": (0, 1, 2)},
        {"local_shape": 3},
    ):
        fields = {
            "global_shape": (2, 3),
            "offset": (0, 0),
            "local_shape": (1, 3),
            "flat_range": (0, 3),
        }
        with pytest.raises(LayoutError, match="LAY101"):
            Shard("w", torch.zeros(3), **{**fields, **wrong})  # type: ignore[arg-type]


def test_states_and_scalars(tmp_path: Path) -> None:
    state = {
        "w": torch.randn(3, 4).bfloat16(),
        "w@master": torch.randn(3, 4),
        "w@exp_avg": torch.randn(3, 4),
        "w.moment2_0": torch.randn(3, 4),
        "w@step": torch.tensor(7.0),
        "none": torch.zeros(0, 5),
        "none@step": torch.tensor(5),
        "alone@step": torch.tensor(9, dtype=torch.int32),
    }
    flexckpt.save(state, tmp_path / "ck", extra={"epoch": 3, "lr": [0.5, None]})
    targets = {name: torch.zeros_like(t) for name, t in state.items()}
    report = flexckpt.load(targets, tmp_path / "ck")
    for name, tensor in state.items():
        assert same(targets[name], tensor), name
    assert report.extra == {"epoch": 3, "lr": [0.5, None]}
    part = {"w@exp_avg_sq": torch.zeros(3, 4), "w@step": torch.tensor(0)}
    report = flexckpt.load(part, tmp_path / "ck", strict={"unexpected": "ignore"})
    assert same(part["w@exp_avg_sq"], state["w.moment2_0"])
    assert (part["w@step"].item(), report.unexpected) == (7, ["alone", "none"])
    step = {"w@step": torch.tensor(0)}
    flexckpt.load(step, tmp_path / "ck", strict=False)
    assert step["w@step"].item() == 7


def test_a_master_copy_stands_in(tmp_path: Path) -> None:
    weight = torch.randn(3, 4).bfloat16()
    flexckpt.save({"w": weight}, tmp_path / "weight")
    target = {"w": torch.zeros(3, 4).bfloat16(), "w@master": torch.zeros(3, 4)}
    report = flexckpt.load(target, tmp_path / "weight")
    assert torch.equal(target["w@master"], weight.float())
    assert report.stand_ins == ["w@master: weight of w"]
    flexckpt.save({"w@master": weight.float()}, tmp_path / "master")
    target = {"w": torch.zeros(3, 4).bfloat16()}
    report = flexckpt.load(target, tmp_path / "master", cast=True)
    assert torch.equal(target["w"], weight)
    assert report.stand_ins == ["w: master of w"]


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (torch.zeros(2, device="meta"), "LAY104"),
        (torch.zeros(2, 2).to_sparse(), "LAY104"),
        (3, "LAY104"),
        ([torch.zeros(2)], "LAY104"),
        (torch.zeros(1).expand(2), "LAY102"),
    ],
    ids=["meta", "sparse", "number", "list", "expanded"],
)
def test_targets_that_cannot_be_filled(tmp_path: Path, value: object, code: str) -> None:
    flexckpt.save({"w": torch.ones(2)}, tmp_path / "ck")
    with pytest.raises(LayoutError, match=code):
        flexckpt.load({"w": value}, tmp_path / "ck")


def test_states_that_cannot_be_saved(tmp_path: Path) -> None:
    half = Shard("w", torch.zeros(2), (4,), (0,))
    for state, code in (
        ({"w": "text"}, "LAY104"),
        ({1: torch.zeros(1)}, "LAY104"),
        (torch.nn.Linear(2, 2), "LAY104.*state_dict"),
        ("text", "LAY104.*not str"),
        ({"a": {"b": torch.zeros(1)}, "a.b": torch.zeros(1)}, "LAY102"),
        ([half], "LAY105"),
        ([half, Shard("w", torch.zeros(3), (5,), (2,))], "LAY105"),
        ([half, Shard("w", torch.zeros(2, dtype=torch.int8), (4,), (2,))], "LAY105"),
        ({"w": torch.zeros(1, device="meta")}, "LAY104"),
    ):
        with pytest.raises(LayoutError, match=code):
            flexckpt.save(state, tmp_path / "ck")  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="LAY104"):
        flexckpt.save({"w": torch.zeros(1)}, tmp_path / "ck", extra={"x": object()})
    assert not list(tmp_path.iterdir())


def test_a_state_that_nothing_has_is_not_converted(tmp_path: Path) -> None:
    flexckpt.save({"w@exp_avg": torch.zeros(2)}, tmp_path / "ck")
    for states in (["weight"], ["exp_avgg"], None):
        with pytest.raises(FlexckptError, match=r"ARG101.*no tensor of the source"):
            flexckpt.convert(tmp_path / "ck", tmp_path / "out", states=states)
    assert [p.name for p in tmp_path.iterdir()] == ["ck"]


def test_a_load_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    flexckpt.save({"a": torch.ones(2), "b": torch.ones(3)}, tmp_path / "ck")
    for targets in (
        {"a": torch.zeros(2), "b": torch.zeros(4)},
        {"a": torch.zeros(2), "b": torch.zeros(3, dtype=torch.int64)},
        {"a": torch.zeros(2), "b": torch.zeros(3), "c": torch.zeros(1)},
        {"a": torch.zeros(2)},
        {"a": torch.zeros(2), "b": torch.zeros(3), "b@exp_avg": torch.zeros(3)},
    ):
        with pytest.raises(flexckpt.FlexckptError):
            flexckpt.load(targets, tmp_path / "ck")
        assert not any(t.any() for t in targets.values())


@QUICK
@given(st.data())
def test_any_parts_into_any_parts(data: st.DataObject) -> None:
    shapes = data.draw(st.lists(SHAPES, min_size=1, max_size=3))
    wholes = {f"k{n}": torch.randn(s) for n, s in enumerate(shapes)}
    ranks: list[list[Shard]] = [[] for _ in range(data.draw(st.integers(1, 4)))]
    for key, whole in wholes.items():
        for part in data.draw(partitions(tuple(whole.shape))):
            for rank in data.draw(st.sets(st.integers(0, len(ranks) - 1), min_size=1)):
                ranks[rank].append(shard(key, whole, part))
    redundancy = data.draw(st.booleans())
    with TemporaryDirectory() as folder:
        write_checkpoint(f"{folder}/ck", ranks, redundancy=redundancy)
        targets: list[Shard] = []
        want: list[torch.Tensor] = []
        for key, whole in wholes.items():
            for part in data.draw(partitions(tuple(whole.shape))):
                target = torch.zeros_like(cut(whole, part))
                if part.flat_range is None and data.draw(st.booleans()):
                    order = data.draw(st.permutations(range(target.ndim)))
                    target = strided(target, order, data.draw(st.integers(1, 2)))
                targets.append(shard(key, whole, part, target))
                want.append(cut(whole, part))
        flexckpt.load(targets, f"{folder}/ck")
    for target_shard, values in zip(targets, want, strict=True):
        assert torch.equal(target_shard.tensor, values)


@QUICK
@given(st.data())
def test_overlapping_parts_count_once(data: st.DataObject) -> None:
    shape = data.draw(FULL_SHAPES)
    whole = torch.arange(torch.tensor(shape).prod().item() if shape else 1).view(shape)
    parts = (
        data.draw(partitions(shape))
        + data.draw(partitions(shape))
        + [Part((0,) * len(shape), shape)]
    )
    parts = data.draw(st.permutations(parts))
    with TemporaryDirectory() as folder:
        write_checkpoint(f"{folder}/ck", [[shard("w", whole, p) for p in parts]])
        target = torch.full_like(whole, -1)
        report = flexckpt.load({"w": target}, f"{folder}/ck")
    assert torch.equal(target, whole)
    assert report.stats.read == whole.numel() * 8
