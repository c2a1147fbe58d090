# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter


def save(state: dict[str, Any], folder: Path, sync: bool = True) -> None:
    """With ``sync``, as by default, every file is flushed to the disk."""
    dcp.save(state, storage_writer=FileSystemWriter(folder, sync_files=sync))


def load(state: dict[str, Any], folder: Path) -> None:
    """Fills the state in place."""
    dcp.load(state, storage_reader=FileSystemReader(folder))
