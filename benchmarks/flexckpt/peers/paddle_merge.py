# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Paddle saves a checkpoint from several ranks and merges it, in a Python of its own.

Nothing here needs torch. By hand, with the Python that has paddlepaddle::

    python -m benchmarks.flexckpt.peers.paddle_merge 256MiB FOLDER

writes a checkpoint of that size below FOLDER, unless it is there, merges it, and prints the cost.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from benchmarks.flexckpt.measure import Contender
from benchmarks.flexckpt.processes import in_fresh_processes, start
from benchmarks.flexckpt.settings import Settings, parse_size

SIDE = 1024  # of the matrices where no shapes are given


def rows(
    python: str,
    settings: Settings,
    shapes: dict[str, tuple[int, ...]] | None = None,
    dtype: str = "float32",
    axis: int = 1,
) -> dict[str, Any]:
    """What merging costs Paddle, after its ranks have written the checkpoint.

    Args:
        python: the interpreter that has Paddle.
        shapes: of the tensors; as many square matrices as fit into the size if None.
        axis: along which each tensor is cut evenly over the ranks (vectors along 0).
    """
    if shapes is None:
        itemsize = {"float32": 4, "bfloat16": 2, "float16": 2}[dtype]
        count = max(1, settings.size // (SIDE * SIDE * itemsize))
        shapes = {f"layer.{k}.weight": (SIDE, SIDE) for k in range(count)}
    if not folder(settings).is_dir():
        tensors = {"shapes": shapes, "dtype": dtype, "axis": axis}
        start(write, settings, tensors, ranks=settings.ranks, python=python)
    merged: dict[str, Any] = in_fresh_processes(
        {"paddle": (merge, {})}, settings, {"paddle": python}
    )["paddle"]
    return merged


def folder(settings: Settings) -> Path:
    return settings.workdir / "paddle"


def write(settings: Settings, shapes: dict[str, Any], dtype: str, axis: int) -> None:
    """One of the ranks that save with `save_state_dict`."""
    rank, ranks = as_rank()
    import paddle
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

    paddle.distributed.init_parallel_env()
    state = {}
    for name, shape in shapes.items():
        along = min(axis, len(shape) - 1)
        share = shape[along] // ranks
        if share * ranks != shape[along]:
            raise ValueError(f"{name}: {shape[along]} is not a multiple of {ranks} ranks")
        local = [share if a == along else n for a, n in enumerate(shape)]
        offset = [rank * share if a == along else 0 for a in range(len(shape))]
        tensor = paddle.rand(local, dtype="float32").astype(dtype)
        state[name] = ShardedWeight(name, tensor, tuple(local), tuple(shape), tuple(offset))
    paddle.distributed.save_state_dict(state, str(folder(settings)))


def as_rank() -> tuple[int, int]:
    """Rank and number of ranks, told to Paddle in the variables that it reads."""
    rank, ranks, port = (int(os.environ[k]) for k in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    ends = [f"127.0.0.1:{port + 1 + k}" for k in range(ranks)]
    os.environ |= {
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(ranks),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(ends),
        "PADDLE_CURRENT_ENDPOINT": ends[rank],
    }
    return rank, ranks


def merge(settings: Settings) -> Contender:
    from paddle.distributed.flex_checkpoint.dcp.load_state_dict import merge_sharded_state_dict

    out = settings.workdir / "merged_by_paddle"
    shutil.rmtree(out, ignore_errors=True)
    return Contender(lambda: merge_sharded_state_dict(str(folder(settings)), str(out)))


def main() -> None:
    from benchmarks.flexckpt.peers import paddle_merge  # under the name that processes import

    size, workdir = sys.argv[1:]
    Path(workdir).mkdir(parents=True, exist_ok=True)
    settings = Settings(parse_size(size), 1, Path(workdir).resolve())
    print(json.dumps(paddle_merge.rows(sys.executable, settings)))


if __name__ == "__main__":
    main()
