# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Being one rank of many in a single process: collectives do nothing, layouts are real."""

import contextlib
from collections.abc import Iterator

import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextlib.contextmanager
def fake_rank(rank: int, size: int) -> Iterator[None]:
    """Be ``rank`` of ``size``."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
