# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A case evaluated by the mapping engine of real Paddle; slices are applied in NumPy."""

import ast
import contextlib
import io
import logging
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from paddle.distributed.flex_checkpoint.aoa.aoa_engine import AOAEngine
from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeightDesc

from tests.flexckpt.golden.numpy_language import Array, rounded
from tests.flexckpt.golden.program import fingerprint

logging.getLogger("paddle.distributed.flex_checkpoint.aoa.aoa_engine").setLevel(logging.ERROR)
UNFILLED = -7


def source_array(entry: Mapping[str, Any]) -> Array:
    shape = tuple(entry["shape"])
    first = entry.get("start", 0)
    array = np.arange(first, first + prod(shape), dtype=np.float64).reshape(shape)
    return rounded(array, entry["dtype"])


def descriptions(tensors: Mapping[str, Any]) -> dict[str, list[ShardedWeightDesc]]:
    out = {}
    for name, entry in tensors.items():
        shape = tuple(entry["shape"])
        shards = entry.get("shards") or [[[0] * len(shape), list(shape)]]
        out[name] = [
            ShardedWeightDesc(name, tuple(local), shape, tuple(offset), entry["dtype"])
            for offset, local in shards
        ]
    return out


def evaluate(case: Mapping[str, Any]) -> dict[str, Any]:
    """What Paddle gives: fingerprints per output and shard.

    Raises:
        Exception: whatever Paddle raises.
    """
    arrays = {n: source_array(e) for n, e in case["source"].items()}
    dest = case["dest"]
    config = {"aoa_statements": list(case["statements"]), "aoa_config_reverse": case["reverse"]}
    with contextlib.redirect_stdout(io.StringIO()):
        engine = AOAEngine(
            config, descriptions(case["source"]), None if dest is None else descriptions(dest)
        )
    if dest is None:
        targets = {}
        for name, tensor in engine.output_vars.items():
            shape = tuple(tensor.shape)
            dtype = _last_cast(tensor) or tensor.dtype
            targets[name] = [ShardedWeightDesc(name, shape, shape, (0,) * len(shape), dtype)]
    else:
        targets = descriptions(dest)
    out = {}
    for name, shards in targets.items():
        if engine.output_vars[name] is None:  # the destination keeps its values
            continue
        out[name] = [fingerprint(_filled(engine, arrays, shard)) for shard in shards]
    return out


def _last_cast(tensor: Any) -> str | None:
    for *_, post in tensor.slices:
        casts = [p for p in post or [] if not p.startswith("[")]
        if casts:
            return str(casts[-1])
    return None


def _filled(engine: Any, arrays: Mapping[str, Array], shard: ShardedWeightDesc) -> Array:
    out = np.full(shard.local_shape, float(UNFILLED))
    for entry in engine.find_shard_sources(shard):
        src, dst = entry.source_slice, entry.target_slice
        part = arrays[src.key][_box(src.global_offset, src.local_shape)]
        for post in entry.postprocess_list or []:
            if post.startswith("["):
                part = np.transpose(part, ast.literal_eval(post))
            else:
                part = rounded(part, post)
        start = [a - b for a, b in zip(dst.global_offset, shard.global_offset, strict=True)]
        out[_box(start, dst.local_shape)] = part
    return out


def _box(start: Any, shape: Any) -> tuple[slice, ...]:
    return tuple(slice(a, a + n) for a, n in zip(start, shape, strict=True))
