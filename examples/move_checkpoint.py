# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Follow a mixture-of-experts checkpoint through four layouts, on a CPU, and find every bit again.

A Hugging Face folder with random weights is explained, loaded into the fused weights of two
tensor-parallel ranks, saved there, taken apart again by three ranks that hold rows of everything,
and merged into a Hugging Face folder. The mapping is one recipe, there and back; nobody writes
which rank reads what.

    python examples/move_checkpoint.py
    python examples/move_checkpoint.py --layers 8 --hidden 512

Nothing is left behind unless --out names a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

import flexckpt
from flexckpt import Shard
from flexckpt.layout.rules import shards_by_rules

HEADS, KV_HEADS, EXPERTS, VOCABULARY = 8, 2, 4, 256

# How a tensor-parallel model holds its fused weights: the axis that ranks cut.
TENSOR_PARALLEL = {
    "*.qkv_proj.weight": 0,
    "*.o_proj.weight": 1,
    "*.w13_weight": 1,
    "*.w2_weight": 2,
    "*embed_tokens.weight": 0,
    "lm_head.weight": 0,
    "*": None,  # norms and routers: all of it on every rank
}


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.out or Path(temporary)
        journey(folder, options.layers, options.hidden)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128, help="a multiple of 16")
    parser.add_argument("--out", type=Path, help="keep all checkpoints here")
    return parser.parse_args(arguments)


def journey(folder: Path, layers: int, hidden: int) -> None:
    config = {
        "model_type": "mixtral",
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_local_experts": EXPERTS,
    }
    state = random_weights(layers, hidden)
    source = folder / "hugging_face"
    source.mkdir(parents=True)
    save_file(state, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config))
    size = sum(tensor.nbytes for tensor in state.values())
    print(f"A Mixtral of {layers} layers: {len(state)} tensors, {size / 2**20:.1f} MiB\n")

    recipe = flexckpt.recipes.load("mixtral_fused", config)
    print(flexckpt.explain(source, aoa=recipe).text())

    shapes = fused_shapes(layers, hidden)
    with timed("two tensor-parallel ranks start, load and save"):
        on_ranks(2, tensor_parallel, folder, recipe, shapes)
    with timed("three ranks with rows of everything start, load and save"):
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        on_ranks(3, by_rows, folder, recipe, shapes)
    back = folder / "back"
    with timed("one process merges it back"):
        flexckpt.merge(folder / "rows", back)
    found: dict[str, torch.Tensor] = {}
    for file in back.glob("*.safetensors"):
        found |= load_file(file)
    wrong = [name for name in state if not torch.equal(found[name], state[name])]
    if wrong or found.keys() != state.keys():
        raise SystemExit(f"{len(wrong)} tensors are not what they were, {wrong[:3]} among them")
    print(f"\nAll {len(state)} tensors are bitwise what they were.")


@contextmanager
def timed(what: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    print(f"{time.perf_counter() - begin:6.2f} s  {what}")


def random_weights(layers: int, hidden: int) -> dict[str, torch.Tensor]:
    """What a Hugging Face folder of a Mixtral holds, in bfloat16."""
    torch.manual_seed(0)
    kv, inner = hidden * KV_HEADS // HEADS, 2 * hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        here = f"model.layers.{layer}"
        shapes |= {
            f"{here}.self_attn.q_proj.weight": (hidden, hidden),
            f"{here}.self_attn.k_proj.weight": (kv, hidden),
            f"{here}.self_attn.v_proj.weight": (kv, hidden),
            f"{here}.self_attn.o_proj.weight": (hidden, hidden),
            f"{here}.block_sparse_moe.gate.weight": (EXPERTS, hidden),
            f"{here}.input_layernorm.weight": (hidden,),
        }
        for expert in range(EXPERTS):
            one = f"{here}.block_sparse_moe.experts.{expert}"
            shapes |= {
                f"{one}.w1.weight": (inner, hidden),
                f"{one}.w2.weight": (hidden, inner),
                f"{one}.w3.weight": (inner, hidden),
            }
    shapes |= {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
    }
    return {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}


def fused_shapes(layers: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """The weights of the model that runs."""
    kv, inner = hidden * KV_HEADS // HEADS, 2 * hidden
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        here = f"model.layers.{layer}"
        shapes |= {
            f"{here}.self_attn.qkv_proj.weight": (hidden + 2 * kv, hidden),
            f"{here}.self_attn.o_proj.weight": (hidden, hidden),
            f"{here}.block_sparse_moe.gate.weight": (EXPERTS, hidden),
            f"{here}.block_sparse_moe.experts.w13_weight": (EXPERTS, 2 * inner, hidden),
            f"{here}.block_sparse_moe.experts.w2_weight": (EXPERTS, hidden, inner),
            f"{here}.input_layernorm.weight": (hidden,),
        }
    return shapes | {
        "model.embed_tokens.weight": (VOCABULARY, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (VOCABULARY, hidden),
    }


def on_ranks(ranks: int, work: Callable[..., None], *arguments: Any) -> None:
    """Runs ``work(rank, ranks, *arguments)`` in that many gloo processes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    torch.multiprocessing.spawn(as_rank, (ranks, work, arguments), ranks)


def as_rank(rank: int, ranks: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    work(rank, ranks, *arguments)
    dist.destroy_process_group()


def tensor_parallel(
    rank: int, ranks: int, folder: Path, recipe: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    """From Hugging Face's names into fused local tensors, which rules call parts of larger ones."""
    local = {
        name: torch.empty(local_shape(name, shape, ranks), dtype=torch.bfloat16)
        for name, shape in shapes.items()
    }
    shards = shards_by_rules(local, TENSOR_PARALLEL, rank, ranks)
    flexckpt.load(shards, folder / "hugging_face", aoa=recipe)
    flexckpt.save(shards, folder / "tensor_parallel")


def local_shape(name: str, shape: tuple[int, ...], ranks: int) -> list[int]:
    """What a rank of the model allocates."""
    axis = next(axis for pattern, axis in TENSOR_PARALLEL.items() if fnmatch(name, pattern))
    return [n // ranks if k == axis else n for k, n in enumerate(shape)]


def by_rows(
    rank: int, ranks: int, folder: Path, recipe: str, shapes: dict[str, tuple[int, ...]]
) -> None:
    """Back to Hugging Face's names, rows of every tensor on each rank, as even as they get."""
    shards = []
    for name, shape in shapes.items():
        first, last = (shape[0] * k // ranks for k in (rank, rank + 1))
        part = torch.empty((last - first, *shape[1:]), dtype=torch.bfloat16)
        shards.append(Shard(name, part, shape, (first, *(0,) * (len(shape) - 1))))
    flexckpt.load(shards, folder / "tensor_parallel", aoa=recipe, reverse=True)
    flexckpt.save(shards, folder / "rows")


if __name__ == "__main__":
    main()
