# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a process does once, and who measures a single call must not count: imports, the parser."""

from __future__ import annotations

from pathlib import Path

import torch

import flexckpt


def warm_up(source: Path | None = None) -> None:
    """Imports what a conversion needs, the reader of ``source`` included, and makes the parser."""
    flexckpt.explain({"a": flexckpt.TensorSpec((1,), torch.float32)}, aoa="a -> b")
    flexckpt.convert, flexckpt.load, flexckpt.save  # noqa: B018  (imported on first use)
    if source is not None:
        flexckpt.read_index(source)
