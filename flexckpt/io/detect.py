# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which layout a path holds, and its index."""

import os
from importlib import import_module
from pathlib import Path

from flexckpt.errors import CheckpointError
from flexckpt.index import Reader, SourceIndex

# Layout -> where its reader is, in the order in which they are asked: a special case of another
# layout stands before it.
READERS: dict[str, tuple[str, str]] = {
    "flexckpt": ("flexckpt.io.native", "READER"),
    "megatron": ("flexckpt.io.megatron", "READER"),
    "dcp": ("flexckpt.io.dcp", "READER"),
    "universal": ("flexckpt.io.deepspeed", "READER_UNIVERSAL"),
    "deepspeed": ("flexckpt.io.deepspeed", "READER_ZERO"),
    "paddle": ("flexckpt.io.paddle", "READER"),
    "safetensors": ("flexckpt.io.huggingface", "READER"),
    "torch": ("flexckpt.io.torch_folder", "READER"),
}


def reader(layout: str) -> Reader:
    """The reader of a layout."""
    if layout not in READERS:
        raise CheckpointError(
            "CKP109", f"layout {layout!r} is not known; known are {', '.join(READERS)}"
        )
    module, name = READERS[layout]
    found: Reader = getattr(import_module(module), name)
    return found


def detect(path: str | os.PathLike[str]) -> str:
    """The name of the layout that a path holds.

    Raises:
        CheckpointError: CKP101 if it holds none that is known.
    """
    where = Path(path)
    if not where.exists():
        raise CheckpointError("CKP101", f"{where} does not exist")
    for layout in READERS:
        if reader(layout).recognizes(where):
            return layout
    raise CheckpointError(
        "CKP101", f"{where} holds no checkpoint of a known layout ({', '.join(READERS)})"
    )


def read_index(path: str | os.PathLike[str], *, layout: str | None = None) -> SourceIndex:
    """What a checkpoint holds and where its bytes lie; reads no tensor.

    Args:
        path: a file or folder.
        layout: a key of :data:`READERS`; recognized if None.

    Raises:
        CheckpointError: CKP1xx if there is no such checkpoint or it is damaged.
    """
    where = Path(path).absolute()
    return reader(layout or detect(where)).read_index(where)
