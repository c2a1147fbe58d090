# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Folders never committed because the process that filled them died: told by their locks."""

import errno
import fcntl
import os
import re
import secrets
import shutil
from pathlib import Path


def partial_name(path: Path, token: str) -> str:
    """The name of a folder that is to become ``path``."""
    return f".{path.name}.{token}.partial"


def lock(folder: Path) -> int:
    """Mark a folder as being filled, for as long as this process lives.

    Returns:
        The descriptor that holds the lock, to be closed in the end; -1 if another process, which
        took the folder for a leftover, has removed it or is about to.
    """
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        there = os.path.exists(folder)
    except OSError as error:
        # A file system without locks: nobody can take the folder for a leftover.
        there = error.errno not in (errno.EWOULDBLOCK, errno.EACCES)
    if there:
        return fd
    os.close(fd)
    return -1


def remove_leftovers(path: Path) -> None:
    """Delete the folders that were to become ``path`` and that no process fills any more."""
    pattern = re.compile(re.escape(partial_name(path, "TOKEN")).replace("TOKEN", "[0-9a-f]{12}"))
    try:
        names = [name for name in os.listdir(path.parent) if pattern.fullmatch(name)]
    except OSError:
        return  # who saves will learn why
    for name in names:
        folder = path.with_name(name)
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Renamed first: where machines do not see each other's locks the folder may be in use;
            # its commit then fails, rather than put half of it in place.
            doomed = path.with_name(partial_name(path, secrets.token_hex(6)))
            os.rename(folder, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        except OSError:
            continue  # it is being filled, or nobody can tell
        finally:
            os.close(fd)
