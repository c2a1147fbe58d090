# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What one rank knows of all against what the ranks hold one by one."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Placement, Replicate, distribute_tensor
from torch.distributed.tensor import Shard as Sharded
from torch.distributed.tensor.placement_types import _StridedShard

from flexckpt.errors import LayoutError
from flexckpt.layout.dtensor import shards_of
from flexckpt.layout.specs import global_spec, local_spec, merge_specs
from flexckpt.model import Shard, TensorSpec
from tests.flexckpt.layout.fake_ranks import fake_rank

PLACEMENTS = [
    ((9, 4), (Replicate(), Sharded(0))),
    ((3, 4), (Sharded(0), Sharded(0))),
    ((3, 0), (Sharded(0), Replicate())),
    ((3, 5), (Replicate(), Replicate())),
    ((8, 6), (_StridedShard(0, split_factor=2), Sharded(0))),
    ((12, 2), (_StridedShard(0, split_factor=2), Replicate())),
    ((5, 6), (Sharded(1), Sharded(0))),
    ((), (Replicate(), Replicate())),
]


@pytest.mark.parametrize(("shape", "placements"), PLACEMENTS, ids=str)
def test_one_rank_knows_the_boxes_of_all(
    shape: tuple[int, ...], placements: tuple[Placement, ...]
) -> None:
    known, held = [], []
    for rank in range(6):
        with fake_rank(rank, 6):
            mesh = init_device_mesh("cpu", (2, 3), mesh_dim_names=(f"a{rank}", f"b{rank}"))
            full = torch.ones(shape, dtype=torch.bfloat16)
            value = distribute_tensor(full, mesh, placements, src_data_rank=None)
            known.append(global_spec("w", value))
            held.append({"w": local_spec(shards_of("w", value))})
    merged = merge_specs(held)["w"]
    assert (merged.shape, merged.dtype) == (shape, torch.bfloat16)
    assert known == [known[0]] * 6
    expected = known[0]
    assert expected is not None
    whole = (((0,) * len(shape), shape),)
    assert set(merged.shards or whole) == set(expected.shards or whole)
    assert (merged.shards is None) == (expected.shards is None)


def test_boxes_are_distinct_and_not_empty() -> None:
    with fake_rank(0, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        value = distribute_tensor(
            torch.ones(1, 6), mesh, [Sharded(0), Sharded(1)], src_data_rank=None
        )
        assert global_spec("w", value) == TensorSpec(
            (1, 6), torch.float32, (((0, 0), (1, 3)), ((0, 3), (1, 3)))
        )


def test_plain_values() -> None:
    assert global_spec("w", torch.zeros(2, 3)) == TensorSpec((2, 3), torch.float32)
    shard = Shard("w", torch.zeros(4), (4, 4), (2, 0), (2, 4), (1, 5))
    assert global_spec("w", shard) is None
    assert local_spec([shard]) == TensorSpec((4, 4), torch.float32, (((2, 0), (2, 4)),))
    empty = Shard("w", torch.zeros(0, 4), (4, 4), (4, 0))
    assert local_spec([empty]).shards == ()
    assert local_spec([Shard("w", torch.zeros(2), (2,), (0,))]).shards is None


def test_contradictions_are_refused() -> None:
    a = {"w": TensorSpec((2, 3), torch.float32)}
    with pytest.raises(LayoutError, match=r"LAY105.*'w'.*\(2, 3\).*\(3, 2\)"):
        merge_specs([a, {"w": TensorSpec((3, 2), torch.float32)}])
    with pytest.raises(LayoutError, match=r"LAY105.*'w'.*float32.*float16"):
        merge_specs([a, {}, {"w": TensorSpec((2, 3), torch.float16)}])
    assert merge_specs([a, {"v": TensorSpec((1,), torch.int64)}]).keys() == {"w", "v"}
    with pytest.raises(LayoutError, match="LAY102"):
        local_spec([])
