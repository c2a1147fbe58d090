# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes golden_loader.json.gz: checkpoints that real Paddle saved and loaded again.

Run from the root of the repository with a Python that has paddlepaddle 3.3.1::

    python -m tests.flexckpt.golden.make_loader

Four processes (gloo, CPU) save each case with Paddle's `save_state_dict`, then this one loads it
with `load_state_dict` into full tensors that hold -7 before. Paddle and NumPy must agree, or the
case be of a kind that Paddle is known to get wrong (``RISKS``). The files of the first cases are
kept as they are, in golden_loader_files.zip.
"""

import contextlib
import gzip
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle.distributed import load_state_dict, save_state_dict
from paddle.distributed.flex_checkpoint.dcp.load_state_dict import _metadata_manager
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeight

from tests.flexckpt.golden.loader_cases import RANKS, build, values_of
from tests.flexckpt.golden.program import fingerprint

CASES = 120
KEPT = 60  # cases whose files are kept
FILE = Path(__file__).with_name("golden_loader.json.gz")
FILES = Path(__file__).with_name("golden_loader_files.zip")
RISKS = {
    "flat_cut_in_a_row": "a flat range cut inside a row is overwritten by zeros",
    "flat_rank_3": "the smallest box of a flat range of three axes is wrong",
    "cast_hits_state": "a cast of the weight also reinterprets its optimizer states",
    "scalar_fan_out": "a scalar state of a tensor that is cut reaches only one of the parts",
    "fan_out": "of two targets of one source box only the last is filled",
}


def shard(name: str, array: Any, dtype: str, item: dict[str, Any], whole: list[int]) -> Any:
    tensor = paddle.to_tensor(np.ascontiguousarray(array)).astype(dtype)
    part = item.get("range")
    return ShardedWeight(
        name,
        tensor,
        tuple(item["shape"]),
        tuple(whole),
        tuple(item["offset"]),
        part is not None,
        None if part is None else slice(*part),
    )


def save(folder: Path) -> None:
    """What one of the processes does."""
    paddle.distributed.init_parallel_env()
    rank = paddle.distributed.get_rank()
    for seed in range(CASES):
        case = build(seed).data()
        state = {}
        for item in case["ranks"][rank]:
            entry = case["tensors"][item["key"]]
            values = values_of(case, item)
            state[item["key"]] = shard(item["key"], values, entry["dtype"], item, entry["shape"])
        save_state_dict(state, str(folder / str(seed)))


def load(path: Path, case: dict[str, Any]) -> dict[str, Any]:
    state = {}
    for name, entry in case["targets"].items():
        shape = entry["shape"]
        item = {"offset": [0] * len(shape), "shape": shape}
        state[name] = shard(name, np.full(shape, -7.0), entry["dtype"], item, shape)
    statements = case["statements"]
    config = None if statements is None else {"aoa_statements": statements}
    _metadata_manager.clear()  # a load that raised leaves its metadata for the next one
    with contextlib.redirect_stdout(io.StringIO()):
        load_state_dict(state, str(path), aoa_config=config)
    out = {}
    for name, weight in state.items():
        values = weight.local_tensor.astype("float64").numpy()
        values = np.where(np.isfinite(values), values, -8.0)
        out[name] = fingerprint(np.trunc(np.clip(values, -1e9, 1e9)))
    return out


def keep_files(folder: Path, cases: list[dict[str, Any]]) -> None:
    with zipfile.ZipFile(FILES, "w", zipfile.ZIP_DEFLATED) as archive:
        for case in cases:
            for file in sorted((folder / str(int(case["id"][1:]))).iterdir()):
                info = zipfile.ZipInfo(f"{case['id']}/{file.name}")
                archive.writestr(info, file.read_bytes(), zipfile.ZIP_DEFLATED)


def main() -> None:
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        args = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(RANKS)]
        args += ["--log_dir", f"{folder}/log", __file__, folder]
        env = os.environ | {"PYTHONPATH": os.getcwd(), "PADDLE_DISTRI_BACKEND": "gloo"}
        subprocess.run(args, check=True, env=env, stdout=subprocess.DEVNULL)
        cases = []
        for seed in range(CASES):
            made = build(seed)
            case = made.data()
            try:
                paddle_result: Any = load(Path(folder) / str(seed), case)
            except Exception as error:  # whatever it raises is the finding
                paddle_result = type(error).__name__
            case = {"id": f"l{seed:03d}", **case}
            if paddle_result == case["expect"]:
                case |= {"verdict": "paddle"}
            elif made.risks:
                verdict = "paddle_refuses" if isinstance(paddle_result, str) else "paddle_wrong"
                case |= {"verdict": verdict, "why": sorted(made.risks), "paddle": paddle_result}
            else:
                raise SystemExit(f"{json.dumps(case)}\n{json.dumps(paddle_result)}")
            cases.append(case)
        keep_files(Path(folder), [c for c in cases[:KEPT] if len(c["tensors"]) <= 24])
    text = json.dumps({"risks": RISKS, "cases": cases}, separators=(",", ":"))
    with open(FILE, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0, filename="") as f:
        f.write(text.encode())
    counts: dict[str, int] = {}
    for case in cases:
        counts[case["verdict"]] = counts.get(case["verdict"], 0) + 1
    print(counts, f"{FILE.stat().st_size}, {FILES.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        save(Path(sys.argv[1]))
    else:
        main()
