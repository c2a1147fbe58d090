# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Numbers in names become those of the whole model, or the name is refused."""

import pytest
import torch

from flexckpt.errors import LayoutError
from flexckpt.layout.renumber import renumber
from flexckpt.model import Shard


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [
        ("decoder.layers.0.bias", {"layers": 6}, "decoder.layers.6.bias"),
        ("layers.9", {"layers": 1}, "layers.10"),
        ("layers.3.bias@exp_avg", {"layers": 1}, "layers.4.bias@exp_avg"),
        ("layers.3@exp_avg", {"layers": 1}, "layers.4@exp_avg"),
        ("layers.1.experts.2.w", {"layers": 4, "experts": 8}, "layers.5.experts.10.w"),
        ("layers.1.experts.2.w", {"experts": 8, "layers": 4}, "layers.5.experts.10.w"),
        ("x.fc1.weight3", {"fc1.weight#": 4}, "x.fc1.weight7"),
        ("x.layers.3.w", {"layers": -3}, "x.layers.0.w"),
        ("mtp_layers.1.layers.2", {"layers": 1}, "mtp_layers.1.layers.3"),
        ("layers.2.layers_x.2", {"layers": 1}, "layers.3.layers_x.2"),
    ],
)
def test_names(name: str, first: dict[str, int], expected: str) -> None:
    value = torch.zeros(1)
    renamed = renumber({name: value, "final.weight": value}, first)
    assert list(renamed) == [expected, "final.weight"]
    assert renamed[expected] is value


def test_shards_are_renamed_too() -> None:
    shard = Shard("layers.0.w", torch.zeros(2), (4,), (2,), state="exp_avg")
    other = Shard("layers.0.w", torch.zeros(1), (4,), (0,))
    renamed = renumber({"layers.0.w@exp_avg": shard, "layers.0.w": [other]}, {"layers": 3})
    new = renamed["layers.3.w@exp_avg"]
    assert isinstance(new, Shard)
    assert (new.key, new.state, new.offset) == ("layers.3.w", "exp_avg", (2,))
    assert new.tensor is shard.tensor
    (listed,) = renamed["layers.3.w"]
    assert listed.key == "layers.3.w"
    assert shard.key == "layers.0.w"


@pytest.mark.parametrize(
    ("names", "first", "message"),
    [
        (["layer.0.w"], {"layers": 3}, "no name has a number for 'layers'"),
        (["layers.00.w"], {"layers": 3}, "no name has a number for 'layers'"),
        (["layers.0.layers.1"], {"layers": 3}, "'layers' is ambiguous in 'layers.0.layers.1'"),
        (["layers.1.w"], {"layers": -2}, "'layers.1.w': 'layers' plus -2 is -1"),
        (
            ["a.layers.0.w"],
            {"layers": 1, "a.layers": 2},
            "'a.layers' is ambiguous in 'a.layers.0.w'",
        ),
        (["layers.0"], {"l#y#": 1}, "the template 'l#y#' must have one '#' at most"),
    ],
)
def test_what_is_refused(names: list[str], first: dict[str, int], message: str) -> None:
    state = {name: torch.zeros(1) for name in names}
    with pytest.raises(LayoutError, match=message) as caught:
        renumber(state, first)
    assert caught.value.code == "LAY107"
