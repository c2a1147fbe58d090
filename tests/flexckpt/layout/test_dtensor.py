# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Shards of DTensors and FSDP2 parameters: filling them is what ``full_tensor`` reads."""

import itertools
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Sharded
from torch.distributed.tensor.placement_types import _StridedShard

from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import replicas, shards_of
from flexckpt.model import Shard
from tests.flexckpt.layout.fake_ranks import fake_rank
from tests.flexckpt.processes import run_ranks

SHAPES = [(7, 5), (4, 6), (1, 3), (9, 2, 3), (0, 4), (6,)]


def counting(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(prod(shape), dtype=dtype).reshape(shape)


def at(full: torch.Tensor, shard: Shard) -> torch.Tensor:
    """The box of a shard in the full tensor."""
    assert shard.local_shape is not None
    return full[
        tuple(slice(a, a + n) for a, n in zip(shard.offset, shard.local_shape, strict=True))
    ]


def placements_for(mesh_dims: int, ndim: int) -> list[tuple[Placement, ...]]:
    single: list[Placement] = [Replicate(), *(Sharded(axis) for axis in range(ndim))]
    rows = list(itertools.product(single, repeat=mesh_dims))
    if mesh_dims == 2:
        rows.append((_StridedShard(0, split_factor=2), Sharded(0)))
        rows.append((_StridedShard(ndim - 1, split_factor=2), Sharded(ndim - 1)))
    for axis, factor in ((0, 3), (ndim - 1, 2)):
        rows.append((_StridedShard(axis, split_factor=factor), *[Replicate()] * (mesh_dims - 1)))
    return rows


def fill_and_read(mesh_shape: tuple[int, ...], ranks: list[int]) -> int:
    mesh = DeviceMesh("cpu", torch.tensor(ranks).reshape(mesh_shape))
    done = 0
    for shape in SHAPES:
        full = counting(shape)
        for placements in placements_for(len(mesh_shape), len(shape)):
            value = distribute_tensor(
                torch.full_like(full, -1), mesh, placements, src_data_rank=None
            )
            shards = shards_of("w", value)
            for shard in shards:
                assert (shard.key, shard.state, shard.global_shape) == ("w", "weight", shape)
                assert (shard.tensor == -1).all(), "no element belongs to two shards"
                shard.tensor.copy_(at(full, shard))
            assert torch.equal(value.full_tensor(), full), (shape, placements)

            everyone: list[tuple[int, ...]] = [()] * len(ranks)
            boxes = [(s.offset, s.local_shape) for s in shards]
            dist.all_gather_object(everyone, boxes)
            mine = replicas("w", value)
            assert mine is not None
            assert mine == tuple(sorted(mine))
            assert all(everyone[rank] == boxes for rank in mine)
            if all(prod(n or ()) for _, n in boxes):
                assert mine == tuple(r for r in range(len(ranks)) if everyone[r] == boxes)
            done += 1
    return done


MESHES = [
    ((2,), [0, 1]),
    ((3,), [0, 1, 2]),
    ((4,), [0, 1, 2, 3]),
    ((2, 2), [0, 1, 2, 3]),
    ((2, 2), [0, 2, 1, 3]),
    ((1, 3), [0, 1, 2]),
    ((4, 1), [0, 1, 2, 3]),
    ((2, 1, 2), [0, 1, 2, 3]),
]


@pytest.mark.dist
@pytest.mark.parametrize(("mesh_shape", "ranks"), MESHES, ids=str)
def test_filling_the_shards_fills_the_dtensor(
    mesh_shape: tuple[int, ...], ranks: list[int]
) -> None:
    assert all(done > 6 for done in run_ranks(fill_and_read, len(ranks), mesh_shape, ranks))


def shards_outside_of_the_mesh() -> tuple[int, object]:
    mesh = DeviceMesh("cpu", [0, 2])
    value = distribute_tensor(counting((5, 2)), mesh, [Sharded(0)])
    return len(shards_of("w", value)), replicas("w", value)


@pytest.mark.dist
def test_a_rank_outside_of_the_mesh_has_no_shard() -> None:
    assert run_ranks(shards_outside_of_the_mesh, 3) == [(1, (0,)), (0, None), (1, (2,))]


class Net(nn.Module):
    """Odd sizes, a scalar-like vector, a parameter smaller than the number of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 10)
        self.down = nn.Linear(10, 7, bias=False)
        self.one = nn.Parameter(torch.ones(1))


def fsdp2_params(mesh_shape: tuple[int, ...], names: tuple[str, ...], tp: bool) -> None:
    mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=names)
    net = Net()
    full = {name: p.detach().clone() for name, p in net.named_parameters()}
    if tp:
        for module, axis in ((net.up, 0), (net.down, 1)):
            for name, p in list(module.named_parameters()):
                cut = distribute_tensor(p.detach(), mesh["tp"], [Sharded(axis)])
                setattr(module, name, nn.Parameter(cut))
    fully_shard(net, mesh=mesh[tuple(n for n in names if n != "tp")])
    for name, p in net.named_parameters():
        assert isinstance(p, DTensor)
        shards = shards_of(name, p)
        assert all(torch.equal(s.tensor, at(full[name], s)) for s in shards)
        assert sum(s.tensor.numel() for s in shards) == p.to_local().numel()
        with torch.no_grad():
            for shard in shards:
                shard.tensor.mul_(2)
        assert torch.equal(p.full_tensor(), 2 * full[name])


@pytest.mark.dist
@pytest.mark.parametrize(
    ("mesh_shape", "names", "tp"),
    [
        ((4,), ("dp",), False),
        ((2, 2), ("replicate", "shard"), False),
        ((2, 2), ("dp", "tp"), True),
    ],
    ids=["fsdp", "hsdp", "fsdp over tp"],
)
def test_fsdp2_parameters(mesh_shape: tuple[int, ...], names: tuple[str, ...], tp: bool) -> None:
    run_ranks(fsdp2_params, prod(mesh_shape), mesh_shape, names, tp)


def fsdp_over_tp_bias(n: int, dp: int, tp: int) -> nn.Parameter:
    # torch keeps meshes by their names, with the coordinate of the rank that made them first.
    names = (f"dp of {dist.get_rank()}", f"tp of {dist.get_rank()}")
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=names)
    module = nn.Module()
    cut = distribute_tensor(counting((n,)), mesh[names[1]], [Sharded(0)], src_data_rank=None)
    module.bias = nn.Parameter(cut)
    fully_shard(module, mesh=mesh[names[0]])
    return module.bias


@pytest.mark.parametrize("rank", [0, 5, 13, 62, 63])
def test_fsdp_over_tp_on_64_ranks_is_right_or_refused(rank: int) -> None:
    refused = []
    with fake_rank(rank, 64):
        for n in (1, 7, 64, 65, 104, 127, 131, 133, 149):
            bias = fsdp_over_tp_bias(n, 8, 8)
            try:
                shards = shards_of("b", bias)
            except LayoutError as error:
                refused.append((n, error.code))
                continue
            held = [x for shard in shards for x in at(counting((n,)), shard).tolist()]
            assert held == bias.to_local().tolist()
    assert refused == [(133, "LAY106"), (149, "LAY106")]


def test_plain_tensors_are_whole() -> None:
    base = counting((6, 4), torch.bfloat16)
    for value in (base[1:4, ::2].T, torch.tensor(3), torch.empty(0, 5), nn.Parameter(base)):
        (shard,) = shards_of("w", value)
        assert shard.global_shape == shard.local_shape == tuple(value.shape)
        assert shard.tensor.data_ptr() == value.data_ptr()
        assert shard.tensor.stride() == value.stride()
        assert not shard.tensor.requires_grad
        assert replicas("w", value) is None


@pytest.mark.parametrize(
    ("name", "state", "expected"),
    [
        ("w", None, ("w", "weight")),
        ("w@exp_avg", None, ("w", "exp_avg")),
        ("w.moment1_0", None, ("w", "exp_avg")),
        ("w@exp_avg", "weight", ("w@exp_avg", "weight")),
        ("w", "mine", ("w", "mine")),
    ],
)
def test_states_are_read_from_names(
    name: str, state: str | None, expected: tuple[str, str]
) -> None:
    (shard,) = shards_of(name, torch.zeros(2), state=state)
    assert (shard.key, shard.state) == expected


def test_shards_pass() -> None:
    shard = Shard("w", torch.zeros(3), (2, 4), (0, 0), (2, 4), (2, 5), "exp_avg")
    assert shards_of("w", shard) == [shard]
    assert shards_of("w", shard)[0] is shard
    assert shards_of("w@exp_avg", shard)[0] is shard
    mine = Shard("w", torch.zeros(3), (3,), (0,), state="mine")
    assert shards_of("w@mine", mine)[0] is mine
    assert shards_of("w", [shard, shard]) == [shard, shard]
    (named,) = shards_of("w.w_0", Shard("w.w_0", torch.zeros(3), (3,), (0,)))
    assert (named.key, named.state) == ("w", "master")


def test_what_is_refused() -> None:
    for value in (3.0, None, "x", [torch.zeros(1)], torch.zeros(2, 2).to_sparse()):
        with pytest.raises(LayoutError, match=r"LAY104.*'w' must be"):
            shards_of("w", value)  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match=r"LAY102.*a shard of 'v' is given as 'w'"):
        shards_of("w", Shard("v", torch.zeros(1), (1,), (0,)))
    with pytest.raises(LayoutError, match=r"LAY102.*a shard of 'w' is given as 'w@exp_avg'"):
        shards_of("w@exp_avg", Shard("w", torch.zeros(1), (1,), (0,)))
    with fake_rank(1, 4):
        mesh = init_device_mesh("cpu", (4,))
        partial = DTensor.from_local(torch.ones(2), mesh, [Partial()])
        with pytest.raises(LayoutError, match=r"LAY106.*'w': placements .*P.* not supported"):
            shards_of("w", partial)
        backwards = DeviceMesh("cpu", [[0, 1], [3, 2]])
        assert replicas("w", distribute_tensor(torch.ones(4), backwards, [Replicate()] * 2))
        value = distribute_tensor(torch.ones(4), backwards, [Replicate(), Sharded(0)])
        with pytest.raises(LayoutError, match=r"LAY106.*'w': the ranks of a mesh must ascend"):
            shards_of("w", value)
        wrong = DTensor.from_local(
            torch.ones(3), mesh, [Sharded(0)], shape=torch.Size([8]), stride=(1,)
        )
        with pytest.raises(LayoutError, match=r"LAY102.*must have shape \(2,\).*not \(3,\)"):
            shards_of("w", wrong)
