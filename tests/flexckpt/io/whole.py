# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A tensor of a source index put together shard by shard, the slow and plain way."""

import torch

from flexckpt.boxes import c_strides
from flexckpt.index import SourceIndex
from flexckpt.io.torch_file import FileTensor, materialize


def whole(index: SourceIndex, key: str, state: str = "weight") -> torch.Tensor:
    """The global tensor; every element must be stored, and replicas must agree."""
    entry = index.entries[key, state]
    full = torch.zeros(entry.shape, dtype=entry.dtype)
    seen = torch.zeros(entry.shape, dtype=torch.int32)
    for shard in entry.shards:
        if shard.position is None:
            assert index.resolve is not None
            shard = index.resolve(shard)
        assert shard.position is not None
        assert shard.flat_range is None
        strides = shard.strides or c_strides(shard.shape)
        place = FileTensor(entry.dtype, shard.shape, strides, shard.position, shard.position)
        part = materialize(place, index.files[shard.file])
        where = tuple(slice(a, a + n) for a, n in zip(shard.offset, shard.shape, strict=True))
        known = seen[where] > 0
        assert torch.equal(full[where][known], part[known])
        full[where] = part
        seen[where] += 1
    assert bool((seen > 0).all()), f"{key} is not covered"
    return full
