# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import (
    FileSystemReader,
    FileSystemWriter,
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files


def save(state: dict[str, Any], folder: Path, sync: bool = True) -> None:
    """With ``sync``, as by default, every file is flushed to the disk."""
    dcp.save(state, storage_writer=FileSystemWriter(folder, sync_files=sync))


def load(state: dict[str, Any], folder: Path) -> None:
    """Fills the state in place."""
    dcp.load(state, storage_reader=FileSystemReader(folder))


def load_hugging_face(state: dict[str, Any], folder: Path) -> None:
    """Fills the state in place from safetensors files."""
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)))


def save_hugging_face_shards(state: dict[str, Any], folder: Path) -> None:
    """A safetensors file per rank with its parts of tensors, to be consolidated."""
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))


def consolidate(folder: Path, out: Path, files: dict[str, int]) -> None:
    """Whole tensors from the parts; ``files``: which file each goes to, from 1."""
    out.mkdir(parents=True)
    consolidate_safetensors_files(str(folder), str(out), fqn_to_index_mapping=files)


def async_save(state: dict[str, Any], folder: Path, group: Any) -> Any:
    """A future of a save that goes on in the background, with a process group to itself."""
    return dcp.async_save(state, storage_writer=FileSystemWriter(folder), process_group=group)
