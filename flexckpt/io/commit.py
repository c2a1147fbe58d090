# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The atomic commit: a folder is filled beside its place and appears by one rename."""

import ctypes
import errno
import os
import secrets
import shutil
from pathlib import Path

from flexckpt.errors import CheckpointError
from flexckpt.io.detect import detect
from flexckpt.io.leftovers import lock, partial_name, remove_leftovers

# Layouts that flexckpt writes: only these are replaced, since replacing deletes what stood there.
_REPLACED = ("flexckpt", "dcp", "universal", "safetensors")
_WITH_FOLDERS = ("universal",)
_ATTEMPTS = 8
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def place_of(path: str | os.PathLike[str]) -> Path:
    """Where a checkpoint named ``path`` is to stand: links are followed.

    Raises:
        CheckpointError: CKP108 if there can be no such place.
    """
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as error:
        raise CheckpointError("CKP108", f"{os.fspath(path)!r} is no path: {error}") from None


class NewFolder:
    """An empty folder beside its later place, to be filled and then committed or dropped.

    What processes that died left beside the place is removed.

    Args:
        path: the later place.
        name: of the folder; a new one if None.

    Raises:
        CheckpointError: CKP108 if it cannot be made, or if ``path`` is there and neither an empty
            folder nor a checkpoint that may be replaced.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.path = path
        self._lock = -1
        _check_place(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            for _ in range(_ATTEMPTS):
                self.partial = path.with_name(name or partial_name(path, secrets.token_hex(6)))
                self.partial.mkdir()
                self._lock = lock(self.partial)
                if self._lock >= 0:
                    return
        except OSError as error:
            raise CheckpointError(
                "CKP108", f"no folder can be made beside {path}: {error.strerror}"
            ) from None
        raise CheckpointError("CKP108", f"new folders beside {path} are taken by other processes")

    def commit(self) -> None:
        """Put the folder in its place, in one step; what stood there is deleted afterwards.

        A crash at any moment leaves either the old folder or the new one at ``path``.

        Raises:
            CheckpointError: CKP108 if the file system refuses.
        """
        try:
            sync_folder(self.partial)
            _put(self.partial, self.path)
            sync_folder(self.path.parent)
        except OSError as error:
            raise CheckpointError(
                "CKP108", f"{self.path} cannot be replaced: {error.strerror}"
            ) from None
        self.drop()

    def drop(self) -> None:
        """Delete the folder if it was not committed, or the one that its commit replaced."""
        shutil.rmtree(self.partial, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _check_place(path: Path) -> None:
    """Raise unless a checkpoint may be put at ``path``, where it replaces what stands there."""
    if not path.name:
        raise CheckpointError("CKP108", f"{path} cannot be the folder of a checkpoint")
    try:
        if not os.path.lexists(path):
            return
        if not path.is_dir():
            raise CheckpointError("CKP108", f"{path} exists and is not a folder")
        with os.scandir(path) as entries:
            found = list(entries)
        if not found:
            return
        layout = detect(path)
    except OSError as error:
        raise CheckpointError("CKP108", f"{path} cannot be read: {error.strerror}") from None
    except CheckpointError as error:
        if error.code != "CKP101":
            raise
        layout = "unknown"
    folders = [entry.name for entry in found if entry.is_dir()]
    if layout not in _REPLACED:
        why = f"holds {found[0].name!r} but no checkpoint that flexckpt could have written"
    elif folders and layout not in _WITH_FOLDERS:
        why = f"holds the folder {folders[0]!r}, which would be deleted with the checkpoint"
    else:
        return
    raise CheckpointError("CKP108", f"{path} is not replaced, because it {why}")


def sync_folder(folder: Path) -> None:
    """Have the names in a folder written to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put(folder: Path, path: Path) -> None:
    """Rename a folder to ``path``; where there is one already the two change places."""
    if not os.path.lexists(path):
        try:
            os.rename(folder, path)
            return
        except OSError as error:  # another process has put its own there just now
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    _exchange(folder, path)


def _exchange(a: Path, b: Path) -> None:
    """Let two folders change places in one step."""
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    code = errno.ENOSYS
    if rename is not None:
        if rename(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
            return
        code = ctypes.get_errno()
    if code not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(code, os.strerror(code))
    raise OSError(
        code,
        "this file system cannot exchange two folders in one step; save under a new name instead",
    )
