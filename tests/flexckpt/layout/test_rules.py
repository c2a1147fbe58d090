# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Rules for plain local tensors: where the parts of a group of ranks lie."""

import numpy as np
import pytest
import torch

from flexckpt.errors import LayoutError
from flexckpt.layout.rules import Split, shards_by_rules
from flexckpt.model import Shard


def test_axis_of_each_pattern() -> None:
    full = torch.arange(24.0).reshape(4, 6)
    rules = {"*.q_proj.weight": 0, "*.o_proj.weight": -1, "*.norm.weight": None}
    for rank in range(2):
        local = {
            "a.b.q_proj.weight": full[2 * rank : 2 * rank + 2],
            "a.o_proj.weight": full[:, 3 * rank : 3 * rank + 3],
            "a.norm.weight": full[0],
            "a.o_proj.weight@exp_avg": full[:, 3 * rank : 3 * rank + 3],
            "a.o_proj.weight@step": torch.tensor(5.0),
        }
        shards = shards_by_rules(local, rules, rank, 2)
        placed = {name: (s.global_shape, s.offset, s.state) for name, (s,) in shards.items()}
        assert placed == {
            "a.b.q_proj.weight": ((4, 6), (2 * rank, 0), "weight"),
            "a.o_proj.weight": ((4, 6), (0, 3 * rank), "weight"),
            "a.norm.weight": ((6,), (0,), "weight"),
            "a.o_proj.weight@exp_avg": ((4, 6), (0, 3 * rank), "exp_avg"),
            "a.o_proj.weight@step": ((), (), "step"),
        }
        assert all(shards[n][0].tensor.data_ptr() == t.data_ptr() for n, t in local.items())


def test_padding_is_no_part_of_the_shards() -> None:
    padded = torch.arange(24).reshape(12, 2)  # 7 true rows, 4 ranks of 3
    seen = []
    for rank in range(4):
        local = {"emb.weight": padded[3 * rank : 3 * rank + 3]}
        (shard,) = shards_by_rules(local, {"emb.weight": Split(0, 7)}, rank, 4)["emb.weight"]
        assert shard.global_shape == (7, 2)
        assert torch.equal(shard.tensor, padded[:7][shard.offset[0] :][: shard.tensor.shape[0]])
        seen.append((shard.offset, tuple(shard.tensor.shape)))
    assert seen == [((0, 0), (3, 2)), ((3, 0), (3, 2)), ((6, 0), (1, 2)), ((7, 0), (0, 2))]


def test_groups_nest() -> None:
    """Stacked experts: the axis of experts over one group, rows of each over another."""
    full = np.arange(4 * 6 * 3).reshape(4, 6, 3)
    hits = np.zeros_like(full)
    for ep in range(2):
        for tp in range(3):
            local = {"experts": torch.tensor(full[2 * ep : 2 * ep + 2, 2 * tp : 2 * tp + 2])}
            inner = shards_by_rules(local, {"experts": 1}, tp, 3)
            (shard,) = shards_by_rules(inner, {"experts": 0}, ep, 2)["experts"]
            assert shard.global_shape == full.shape
            box = tuple(
                slice(a, a + n) for a, n in zip(shard.offset, shard.tensor.shape, strict=True)
            )
            assert np.array_equal(full[box], shard.tensor.numpy())
            hits[box] += 1
    assert (hits == 1).all()


def test_flattened_shards_keep_their_range() -> None:
    flat = Shard("w", torch.arange(3.0), (2, 4), (0, 0), (2, 4), (2, 5), "exp_avg")
    (shard,) = shards_by_rules({"w@exp_avg": flat}, {"w": 0}, 1, 2)["w@exp_avg"]
    assert (shard.global_shape, shard.offset) == ((4, 4), (2, 0))
    assert (shard.local_shape, shard.flat_range) == ((2, 4), (2, 5))


def test_the_longest_pattern_counts() -> None:
    rules = {"*": None, "*.weight": 1, "*.a.weight": 0}
    local = {name: torch.zeros(2, 3) for name in ("x.a.weight", "x.b.weight", "x.bias")}
    shards = shards_by_rules(local, rules, 1, 2)
    assert [s.offset for (s,) in shards.values()] == [(2, 0), (0, 3), (0, 0)]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"*.bias": 0}, r"no rule matches 'a.weight'"),
        ({"a.*": 0, "*.w": 1, "*ht": 1}, r"the rules \['\*ht', 'a.\*'\].*'a.weight'.*disagree"),
        ({"a*": 2}, r"'a.weight': a rule cuts axis 2, but the tensor has shape \(2, 3\)"),
        ({"a*": Split(0, 5)}, r"axis 0 has 4 entries on all ranks, fewer than 5"),
    ],
)
def test_what_is_refused(rules: dict[str, int | Split | None], message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        shards_by_rules({"a.weight": torch.zeros(2, 3)}, rules, 0, 2)
    assert caught.value.code == "LAY107"


def test_agreeing_rules_are_fine_and_ranks_are_checked() -> None:
    local = {"a.weight": torch.zeros(2, 3)}
    assert shards_by_rules(local, {"a.*": 0, "*ht": 0}, 1, 2)["a.weight"][0].offset == (2, 0)
    with pytest.raises(LayoutError, match="rank must be 0 to 1, not 2"):
        shards_by_rules(local, {"*": 0}, 2, 2)
