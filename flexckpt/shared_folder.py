# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A folder that several ranks fill and that appears in one step, or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexckpt.comm.group import Comm
from flexckpt.io.commit import NewFolder, place_of
from flexckpt.io.leftovers import remove_leftovers


class SharedFolder:
    """A folder beside its later place.

    Attributes:
        partial: where the files go for now.
        leads: whether this rank makes what there is once per file system.
    """

    def __init__(self, path: Path, partial: Path, leads: bool) -> None:
        self.path = path
        self.partial = partial
        self.leads = leads


@contextmanager
def shared_folder(path: Path, comm: Comm) -> Iterator[SharedFolder]:
    """A folder for all ranks, committed when all leave the block well, else deleted.

    Where ranks do not see the folder of rank 0 (disks of their own), the first of these leads.

    Raises:
        CheckpointError: CKP108 if the folder cannot be made or put in its place.
        TransferError: NET101 if another rank failed.
    """
    with comm.together("looking at the place of the checkpoint"):
        where = place_of(path)
    own: NewFolder | None = None
    try:
        with comm.together("making the folder of the checkpoint"):
            if comm.rank == 0:
                own = NewFolder(where)
        name = comm.broadcast(own.partial.name if own else None)
        partial = where.with_name(name)
        while True:
            seen = comm.gather(os.path.isdir(partial))
            if all(seen):
                break
            with comm.together("making the folder of the checkpoint"):
                if comm.rank == seen.index(False):
                    own = NewFolder(where, name)
        with comm.together("writing the checkpoint"):
            yield SharedFolder(where, partial, own is not None)
        with comm.together("committing the checkpoint"):
            if own is not None:
                own.commit()
    except BaseException:
        if own is not None:
            own.drop()
        else:  # the rank that made the folder may have died; if it lives, it deletes it by itself
            remove_leftovers(where)
        raise
