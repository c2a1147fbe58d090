# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random parts on random ranks into random parts on random ranks, from memory and from files."""

import random
from math import prod
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import flexckpt
from flexckpt import Shard
from flexckpt import transfer as transfer_module
from tests.flexckpt.core.parts import Part, cut, shard
from tests.flexckpt.processes import run_ranks

pytestmark = pytest.mark.dist
MAPPING = "a^T -> t\nt, b -> c, axis=0\nx -> y, dtype='bfloat16'"


def random_parts(chance: random.Random, shape: tuple[int, ...]) -> list[Part]:
    """Disjoint parts of a tensor: boxes, and some of them cut into flattened ranges."""
    boxes = [((0,) * len(shape), shape)]
    for _ in range(chance.randrange(4) if shape else 0):
        offset, box = boxes.pop(chance.randrange(len(boxes)))
        axis = chance.randrange(len(shape))
        n = chance.randint(0, box[axis])
        upper = (*offset[:axis], offset[axis] + n, *offset[axis + 1 :])
        boxes.append((offset, (*box[:axis], n, *box[axis + 1 :])))
        boxes.append((upper, (*box[:axis], box[axis] - n, *box[axis + 1 :])))
    parts = []
    for offset, box in boxes:
        at = sorted(chance.randint(0, prod(box)) for _ in range(chance.randrange(3)))
        if not at:
            parts.append(Part(offset, box))
            continue
        ends = [*at, prod(box)]
        parts += [Part(offset, box, (a, b)) for a, b in zip([0, *at], ends, strict=True)]
    return parts


def spread(
    chance: random.Random, wholes: dict[str, torch.Tensor], *, filled: bool, ranks: range
) -> list[Shard]:
    """The shards of this rank, of parts that every rank draws alike."""
    mine = []
    for key, whole in wholes.items():
        for part in random_parts(chance, tuple(whole.shape)):
            owners = chance.sample(ranks, chance.randint(1, len(ranks)))
            if dist.get_rank() in owners:
                values = cut(whole, part)
                mine.append(shard(key, whole, part, values if filled else values * 0 - 1))
    return mine


def rounds(folder: str, seed: int, count: int) -> list[str]:
    """Many rounds; what was wrong."""
    rank, size = dist.get_rank(), dist.get_world_size()
    chance = random.Random(seed)
    transfer_module.MESSAGE_BYTES, kept = 96, transfer_module.MESSAGE_BYTES
    bad = []
    for number in range(count):
        n, m, k = (chance.randint(0 if number % 5 == 0 else 1, 6) for _ in range(3))
        generator = torch.Generator().manual_seed(seed + number)
        a, b = torch.randn(n, m, generator=generator), torch.randn(k, n, generator=generator)
        x = torch.randn(2, n, m, generator=generator)
        source = {"a": a, "b": b, "x": x}
        want = {"c": torch.cat([a.t(), b]), "y": x.bfloat16()}
        have = spread(chance, source, filled=True, ranks=range(size))
        targets = spread(chance, want, filled=False, ranks=range(chance.randrange(size), size))
        way = number % 3
        if way == 0:
            flexckpt.sync(have, targets, aoa=MAPPING)
        else:
            flexckpt.save(have, f"{folder}/{number}", redundancy=number % 2 == 0)
            flexckpt.load(targets, f"{folder}/{number}", aoa=MAPPING, read_once=way == 1)
        for s in targets:
            assert s.local_shape is not None
            part = Part(tuple(s.offset), tuple(s.local_shape), s.flat_range)
            if not torch.equal(s.tensor, cut(want[s.key], part)):
                bad.append(f"round {number}, rank {rank}: {s.key} {part}")
        got = dict(flexckpt.full_params(have, aoa=MAPPING, batch_bytes=64))
        bad += [f"round {number}: {key}" for key in want if not torch.equal(got[key], want[key])]
    transfer_module.MESSAGE_BYTES = kept
    return bad


@pytest.mark.parametrize(("size", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_random_parts_on_random_ranks(tmp_path: Path, size: int, seed: int) -> None:
    assert run_ranks(rounds, size, str(tmp_path), 1000 * seed, 30) == [[]] * size
