# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The tensors that are moved: those of a Llama of the size that is asked for."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

HIDDEN, FEED_FORWARD, HEADS, KV_HEADS, VOCABULARY = 1024, 2816, 16, 4, 8192

LAYER = {
    "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
    "self_attn.k_proj.weight": (HIDDEN * KV_HEADS // HEADS, HIDDEN),
    "self_attn.v_proj.weight": (HIDDEN * KV_HEADS // HEADS, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
    "mlp.gate_proj.weight": (FEED_FORWARD, HIDDEN),
    "mlp.up_proj.weight": (FEED_FORWARD, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, FEED_FORWARD),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
}


class Model(NamedTuple):
    """Names and shapes of a model, and its number of layers."""

    shapes: dict[str, tuple[int, ...]]
    layers: int


def llama(size: int, itemsize: int, vocabulary: int = VOCABULARY) -> Model:
    """As many layers as fit into ``size`` bytes, at least one."""
    ends = {
        "model.embed_tokens.weight": (vocabulary, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (vocabulary, HIDDEN),
    }
    rest = size // itemsize - sum(map(prod, ends.values()))
    layers = max(1, rest // sum(map(prod, LAYER.values())))
    inside = {
        f"model.layers.{layer}.{name}": shape
        for layer in range(layers)
        for name, shape in LAYER.items()
    }
    return Model({**inside, **ends}, layers)


def random_state(model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    """The same values in every process."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: torch.empty(shape, dtype=dtype).uniform_(generator=generator)
        for name, shape in model.shapes.items()
    }


def sharded(
    state: dict[str, Tensor], mesh: DeviceMesh, axis: int, fill: float | None = None
) -> dict[str, DTensor]:
    """The state as DTensors cut along ``axis`` (a vector along 0), with own memory.

    With ``fill`` they hold that value instead of the state's.
    """
    out = {}
    for name, tensor in state.items():
        along = min(axis, tensor.ndim - 1)
        local = tensor.chunk(mesh.size(), along)[mesh.get_local_rank()].clone()
        if fill is not None:
            local.fill_(fill)
        out[name] = DTensor.from_local(local, mesh, [Shard(along)], run_check=False)
    return out


def wrong(
    got: dict[str, DTensor], state: dict[str, Tensor], mesh: DeviceMesh, axis: int
) -> list[str]:
    """Names of the tensors that differ from the state's part."""
    want = sharded(state, mesh, axis)
    return [name for name in got if not torch.equal(got[name].to_local(), want[name].to_local())]


def write_hugging_face(folder: Path, state: dict[str, Tensor], files: int = 4) -> None:
    """A folder of several safetensors files with their index."""
    folder.mkdir(parents=True)
    names = list(state)
    places = {}
    for number in range(files):
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = names[number::files]
        save_file({name: state[name] for name in part}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def check_same(folder: Path, reference: Path) -> None:
    """Raises unless two Hugging Face folders hold the same values, in the dtypes of the first."""
    wanted = tensors_in(reference)
    found = tensors_in(folder)
    if found.keys() != wanted.keys():
        raise RuntimeError(f"{folder} and {reference} hold different names")
    for name, file in found.items():
        with safe_open(file, "pt") as ours, safe_open(wanted[name], "pt") as theirs:
            tensor = ours.get_tensor(name)
            if not torch.equal(tensor, theirs.get_tensor(name).to(tensor.dtype)):
                raise RuntimeError(f"{name} differs between {folder} and {reference}")


def tensors_in(folder: Path) -> dict[str, Path]:
    """The safetensors file of every tensor of a folder."""
    files = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            files |= dict.fromkeys(file.keys(), path)
    return files


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
