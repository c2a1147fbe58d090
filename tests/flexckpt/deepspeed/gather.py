# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Whole tensors of an index or of shards, assembled element by element: slow and obvious."""

from collections.abc import Iterable
from itertools import product

import torch

from flexckpt.boxes import Region
from flexckpt.index import Entry, SourceIndex
from flexckpt.model import Shard


def _positions(region: Region) -> Iterable[tuple[tuple[int, ...], int]]:
    """Global index and position in the storage of every element of a region."""
    ranges = (range(a, b) for a, b in zip(region.box.start, region.box.stop, strict=True))
    for index in product(*ranges):
        steps = zip(index, region.box.start, region.strides, strict=True)
        yield index, region.base + sum((i - a) * s for i, a, s in steps)


def gather_entry(index: SourceIndex, entry: Entry) -> torch.Tensor:
    """The tensor of an entry; every element must be stored once."""
    whole = torch.empty(entry.shape, dtype=entry.dtype)
    seen = torch.zeros(entry.shape, dtype=torch.int64)
    for stored in entry.shards:
        assert stored.position is not None
        data = index.files[stored.file].read_bytes()
        for region in stored.regions():
            for place, at in _positions(region):
                begin = stored.position + at * entry.dtype.itemsize
                raw = bytearray(data[begin : begin + entry.dtype.itemsize])
                whole[place] = torch.frombuffer(raw, dtype=entry.dtype)[0]
                seen[place] += 1
    assert (seen == 1).all(), (entry.key, entry.state)
    return whole


def gather(index: SourceIndex, state: str) -> dict[str, torch.Tensor]:
    """The tensors of a state by key."""
    return {
        key: gather_entry(index, entry) for (key, s), entry in index.entries.items() if s == state
    }


def gather_shards(ranks: Iterable[Iterable[Shard]]) -> dict[tuple[str, str], torch.Tensor]:
    """What the shards of all ranks make together, by key and state: every element must be there.

    What several shards hold must be equal.
    """
    wholes: dict[tuple[str, str], torch.Tensor] = {}
    seen: dict[tuple[str, str], torch.Tensor] = {}
    for shard in (shard for rank in ranks for shard in rank):
        name, tensor = (shard.key, shard.state), shard.tensor.detach()
        if name not in wholes:
            wholes[name] = torch.empty(tuple(shard.global_shape), dtype=tensor.dtype)
            seen[name] = torch.zeros(tuple(shard.global_shape), dtype=torch.bool)
        length = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        storage = tensor.as_strided((length,), (1,), 0)
        for region in shard.regions():
            for place, at in _positions(region):
                assert not seen[name][place] or wholes[name][place] == storage[at], name
                wholes[name][place] = storage[at]
                seen[name][place] = True
    assert all(there.all() for there in seen.values())
    return wholes
