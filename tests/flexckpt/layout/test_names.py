# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Names of parameters do not depend on what a model is wrapped in."""

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.parallel import DistributedDataParallel

from flexckpt.errors import LayoutError
from flexckpt.layout.names import parameter_names
from tests.flexckpt.layout.fake_ranks import fake_rank


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)  # a name that a wrapper uses, too
        self.deep = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
        self.tied = self.deep[1]


NAMES = ["module.weight", "module.bias", "deep.0.weight", "deep.0.bias", "deep.1.weight"]


def test_wrappers_leave_no_trace() -> None:
    net = Net()
    assert list(parameter_names(net)) == NAMES
    net.deep[0] = checkpoint_wrapper(net.deep[0])
    assert list(parameter_names(torch.compile(net))) == NAMES
    with fake_rank(0, 2):
        wrapped = DistributedDataParallel(torch.compile(net))
        found = parameter_names(wrapped)
    assert list(found) == NAMES
    assert found["deep.1.weight"] is net.deep[1].weight


def test_the_first_fsdp_is_refused() -> None:
    net = nn.Module()
    net._fsdp_wrapped_module = nn.Linear(1, 1)
    with pytest.raises(LayoutError, match=r"INT102.*'_fsdp_wrapped_module.weight'.*fully_shard"):
        parameter_names(net)
