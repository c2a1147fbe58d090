# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""PaddlePaddle, in a Python of its own."""

from __future__ import annotations

from typing import Any

from benchmarks.flexckpt.data import llama
from benchmarks.flexckpt.peers import paddle_merge
from benchmarks.flexckpt.settings import Settings


def merge(python: str, settings: Settings) -> dict[str, Any]:
    """The cost of merging the tensors of the benchmark, in bf16 and cut by rows, to safetensors."""
    return paddle_merge.rows(python, settings, llama(settings.size, 2).shapes, "bfloat16", axis=0)
