# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paths that an index names must stay in the folder of the checkpoint."""

from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from flexckpt.errors import CheckpointError


def file_inside(folder: Path, name: Any, index: str) -> Path:
    """The file ``name`` of ``folder``, as the file ``index`` names it.

    Links are followed: caches of downloaded models are made of them.

    Raises:
        CheckpointError: CKP106 unless ``name`` is a plain relative path on every system.
    """
    if type(name) is str:
        posix, windows = PurePosixPath(name), PureWindowsPath(name)
        leaves = posix.is_absolute() or windows.drive or windows.root or ".." in windows.parts
        if posix.name and not leaves and "\0" not in name:
            return folder / name
    what = name[:200] if type(name) is str else name
    raise CheckpointError("CKP106", f"{folder / index} names {what!r}, outside of its folder")
