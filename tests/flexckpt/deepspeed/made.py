# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Checkpoints that DeepSpeed makes once for all tests of this process."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flexckpt.model import Shard
from tests.flexckpt.deepspeed.jobs import launch, make_checkpoints

WORLD = 2


class Made(NamedTuple):
    """What was made.

    Attributes:
        root: folder of the checkpoints, each under the name of its run.
        losses: by run, of the steps after the checkpoint, which did not break it.
        shards: by run and rank, of the engines at the checkpoint.
        resumed: by run, the losses of an engine of the same kind that went on from the checkpoint.
    """

    root: Path
    losses: dict[str, list[float]]
    shards: dict[str, list[list[Shard]]]
    resumed: dict[str, Any]


@cache
def made() -> Made:
    root = Path(tempfile.mkdtemp(prefix="flexckpt-deepspeed-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    ranks = launch(WORLD, make_checkpoints, root)
    first = ranks[0]
    shards = {name: [rank.shards[name] for rank in ranks] for name in first.losses}
    return Made(root, first.losses, shards, first.resumed)
