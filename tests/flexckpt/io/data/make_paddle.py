# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes paddle_checkpoints.zip: small checkpoints as real Paddle writes them, and what they hold.

Run from the root of the repository with a Python that has paddlepaddle 3.3.1::

    python -m tests.flexckpt.io.data.make_paddle

Three processes (gloo, CPU) save. A checkpoint is a folder of the archive; ``contents.json`` says
per folder the name, dtype, global shape, first value and step of each tensor.
"""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed import save_state_dict
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

RANKS = 3
FILE = Path(__file__).with_name("paddle_checkpoints.zip")
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
DTYPES += ("int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")

Contents = dict[str, Any]


def _values(entry: Contents) -> np.ndarray:
    count = int(np.prod(entry["shape"]))
    numbers = entry["first"] + entry["step"] * np.arange(count, dtype=np.float64)
    return numbers.reshape(entry["shape"])


def _shard(
    name: str,
    entry: Contents,
    offset: list[int],
    shape: list[int],
    part: tuple[int, int] | None = None,
) -> ShardedWeight:
    box = tuple(slice(a, a + n) for a, n in zip(offset, shape, strict=True))
    values = np.ascontiguousarray(_values(entry)[box])
    if part is not None:
        values = values.reshape(-1)[part[0] : part[1]]
    tensor = paddle.to_tensor(values).astype(entry["dtype"])
    flat = None if part is None else slice(*part)
    return ShardedWeight(
        name, tensor, tuple(shape), tuple(entry["shape"]), tuple(offset), part is not None, flat
    )


def _tensor(shape: list[int], first: int, dtype: str = "float32", step: int = 1) -> Contents:
    return {"shape": shape, "dtype": dtype, "first": first, "step": step}


def boxes(rank: int, path: str, **options: Any) -> Contents:
    """A matrix in uneven columns, a bf16 matrix in rows, a vector that all hold, an empty one."""
    contents = {
        "column": _tensor([4, 7], 0),
        "row": _tensor([6, 3], 5, "bfloat16"),
        "same": _tensor([5], 100),
        "empty": _tensor([0, 4], 0),
    }
    at, wide = [(0, 3), (3, 3), (6, 1)][rank]
    state = {
        "column": _shard("column", contents["column"], [0, at], [4, wide]),
        "row": _shard("row", contents["row"], [2 * rank, 0], [2, 3]),
        "same": _shard("same", contents["same"], [0], [5]),
        "empty": _shard("empty", contents["empty"], [0, 0], [0, 4]),
    }
    save_state_dict(state, path, **options)
    return contents


def safetensors(rank: int, path: str) -> Contents:
    return boxes(rank, path, safetensors=True)


def replicas(rank: int, path: str) -> Contents:
    return boxes(rank, path, save_replicas=True)


def flattened(rank: int, path: str) -> Contents:
    """Optimizer states in flat ranges of a box, cut inside rows, with scalars and the weight."""
    contents = {
        "net.w": _tensor([3, 5], 0, "bfloat16"),
        "net.w.w_0": _tensor([3, 5], 0),
        "net.w.moment1_0": _tensor([3, 5], 100),
        "net.w.moment2_0": _tensor([3, 5], 200),
        "net.w.beta1_pow_acc_0": _tensor([1], 7),
        "net.w.beta2_pow_acc_0": _tensor([1], 8),
        "cube.moment1_0": _tensor([2, 3, 4], 0),
    }
    ranges = {15: [(0, 4), (4, 11), (11, 15)], 24: [(0, 5), (5, 7), (7, 24)]}
    state = {}
    for name, entry in contents.items():
        shape = entry["shape"]
        size = int(np.prod(shape))
        whole = name == "net.w" or size == 1
        part = None if whole else ranges[size][rank]
        state[name] = _shard(name, entry, [0] * len(shape), shape, part)
    save_state_dict(state, path)
    return contents


def plain(rank: int, path: str) -> Contents:
    """Nested dicts of tensors: all dtypes, 0-d, turned, larger than a frame."""
    contents = {f"of.{dtype}": _tensor([2, 3], 0, dtype) for dtype in DTYPES}
    contents |= {
        "zero.dims": _tensor([], 3),
        "turned": _tensor([4, 6], 0),
        "large": _tensor([200, 100], 1, step=0),
    }
    contents["of.bool"]["step"] = 0
    flat = {n: paddle.to_tensor(_values(e)).astype(e["dtype"]) for n, e in contents.items()}
    flat["turned"] = paddle.to_tensor(_values(contents["turned"]).T.copy()).astype("float32").t()
    nested = {"of": {n[3:]: t for n, t in flat.items() if n.startswith("of.")}}
    nested["zero"] = {"dims": flat["zero.dims"]}
    save_state_dict(nested | {n: flat[n] for n in ("turned", "large")}, path)
    return contents


def twice(rank: int, path: str) -> Contents:
    """Two checkpoints in one folder, with the ids 3 and 12."""
    old = {"w": _tensor([3], 0)}
    new = {"w": _tensor([3], 10)}
    for contents, number in ((old, 3), (new, 12)):
        state = {"w": _shard("w", contents["w"], [rank], [1])}
        save_state_dict(state, path, unique_id=number)
    return new


def stale(rank: int, path: str) -> Contents:
    """Saved again with another shape under the same id: Paddle keeps the old metadata."""
    for rows in (2, 4):
        entry = _tensor([rows * RANKS, 2], 0)
        state = {"w": _shard("w", entry, [rows * rank, 0], [rows, 2])}
        save_state_dict(state, path)
    return {}


CHECKPOINTS: list[Callable[[int, str], Contents]] = [
    boxes,
    safetensors,
    replicas,
    flattened,
    plain,
    twice,
    stale,
]


def save(folder: Path) -> None:
    """What one of the processes does."""
    paddle.distributed.init_parallel_env()
    rank = paddle.distributed.get_rank()
    contents = {make.__name__: make(rank, str(folder / make.__name__)) for make in CHECKPOINTS}
    if rank == 0:
        (folder / "contents.json").write_text(json.dumps(contents, indent=1))


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        args = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS)]
        args += ["--log_dir", f"{name}/log", __file__, name]
        env = os.environ | {"PYTHONPATH": os.getcwd(), "PADDLE_DISTRI_BACKEND": "gloo"}
        subprocess.run(args, check=True, env=env, stdout=subprocess.DEVNULL)
        folder = Path(name)
        with zipfile.ZipFile(FILE, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in sorted(folder.rglob("*")):
                inside = file.relative_to(folder)
                if file.is_file() and inside.parts[0] != "log":
                    archive.writestr(zipfile.ZipInfo(str(inside)), file.read_bytes(), 8)
    print(f"{FILE.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        save(Path(sys.argv[1]))
    else:
        main()
