# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A folder that several ranks fill and that appears in one step, or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flexckpt.comm.group import Comm
from flexckpt.errors import TransferError
from flexckpt.io.commit import commit, drop, new_folder


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

    Where ranks do not see the folder of rank 0 (disks of their own), the first of them leads theirs.

    Raises:
        CheckpointError: CKP108 if the folder cannot be made or put in its place.
        TransferError: NET101 if another rank failed.
    """
    name: str | None = None
    with comm.together("making the folder of the checkpoint"):
        if comm.rank == 0:
            name = new_folder(path).name
    partial = path.with_name(comm.broadcast(name))
    leads = comm.rank == 0
    try:
        while True:
            seen = comm.gather(partial.exists())
            if all(seen):
                break
            with comm.together("making the folder of the checkpoint"):
                if comm.rank == seen.index(False):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    partial.mkdir()
                    leads = True
        folder = SharedFolder(path, partial, leads)
        with comm.together("writing the checkpoint"):
            yield folder
        with comm.together("committing the checkpoint"):
            if leads:
                commit(partial, path)
    except BaseException as error:
        # Where another rank was lost nobody knows what it still does: each leader cleans up its own.
        if leads or isinstance(error, TransferError):
            drop(partial)
        raise
