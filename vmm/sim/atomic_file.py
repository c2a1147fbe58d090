# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files that appear complete or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def new_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write; takes the name `path` when the block ends, and is removed if it raises.

    An OSError names `path`, not the file that was meant to become it.
    """
    target = Path(path)
    try:
        with _beside(target) as file:
            yield file
    except OSError as error:
        if error.errno is None:
            raise OSError(f"{target}: {error}") from error
        raise OSError(error.errno, error.strerror, str(target)) from error


@contextmanager
def _beside(target: Path) -> Iterator[BinaryIO]:
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes files that only their owner may read
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
