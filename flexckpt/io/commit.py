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

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def new_folder(path: Path) -> Path:
    """An empty folder beside ``path``, to be filled and then committed or dropped.

    Raises:
        CheckpointError: CKP108 if it cannot be made, or ``path`` is something other than a folder.
    """
    if path.exists() and not path.is_dir():
        raise CheckpointError("CKP108", f"{path} exists and is not a folder")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    except OSError as error:
        raise CheckpointError("CKP108", f"{temporary} cannot be made: {error.strerror}") from None
    return temporary


def commit(temporary: Path, path: Path) -> None:
    """Put a filled folder in its place, in one step; what stood there is deleted afterwards.

    A crash at any moment leaves either the old folder or the new one at ``path``.

    Raises:
        CheckpointError: CKP108 if the file system refuses.
    """
    try:
        sync_folder(temporary)
        if not path.exists():
            os.rename(temporary, path)
        else:
            _exchange(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        raise CheckpointError("CKP108", f"{path} cannot be replaced: {error.strerror}") from None
    drop(temporary)


def drop(folder: Path) -> None:
    """Delete a folder that was not committed, or the one that a commit replaced."""
    shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder written to the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


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
