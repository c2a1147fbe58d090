# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""For tests: checkpoints of several ranks, written by one process."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flexckpt.api.save import plain
from flexckpt.collect import shards_in
from flexckpt.io.commit import NewFolder, place_of
from flexckpt.io.shard_files import NativeShards
from flexckpt.memory_index import held
from flexckpt.model import Shard
from flexckpt.plan.ownership import assign_writers


def write_checkpoint(
    path: str | os.PathLike[str],
    ranks: Sequence[Sequence[Shard]],
    *,
    extra: Mapping[str, Any] | None = None,
    redundancy: bool = False,
) -> None:
    """Write what :func:`flexckpt.save` would have written if rank ``r`` held ``ranks[r]``.

    Args:
        path: the folder of the checkpoint.
        ranks: the shards of every rank.
        extra: what to keep beside the tensors.
        redundancy: every rank writes all its shards.

    Raises:
        LayoutError, CheckpointError: as save does.
    """
    where = place_of(path)
    kept = plain(extra)
    shards = [{held(s): s for s in shards_in(list(mine))} for mine in ranks]
    writers = assign_writers([list(mine) for mine in shards])
    folder = NewFolder(where)
    try:
        files = NativeShards(kept)
        records = [
            files.write(
                folder.partial,
                rank,
                [(h, s.tensor) for h, s in mine.items() if redundancy or writers[h] == rank],
            )
            for rank, mine in enumerate(shards)
        ]
        files.finish(folder.partial, records)
        folder.commit()
    except BaseException:
        folder.drop()
        raise
