# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""For tests: checkpoints of several ranks, written by one process."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flexckpt.collect import shards_in
from flexckpt.io.commit import commit, drop, new_folder
from flexckpt.io.native import Record, file_name
from flexckpt.io.sinks import write_index
from flexckpt.memory_index import held
from flexckpt.model import Shard
from flexckpt.plan.ownership import assign_writers
from flexckpt.api.save import plain, write_shards


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
    where = Path(path).absolute()
    kept = plain(extra)
    shards = [{held(s): s for s in shards_in(list(mine))} for mine in ranks]
    writers = assign_writers([list(mine) for mine in shards])
    partial = new_folder(where)
    try:
        records: list[Record] = []
        files = []
        for rank, mine in enumerate(shards):
            own = [s for h, s in mine.items() if redundancy or writers[h] == rank]
            file = partial / file_name(rank)
            records += write_shards(own, file, rank, checksums=True)
            files.append((file.name, file.stat().st_size))
        write_index(partial, files, records, kept)
        commit(partial, where)
    except BaseException:
        drop(partial)
        raise
