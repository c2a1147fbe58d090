# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A small Hugging Face folder, and a mapping that fuses, transposes, casts and drops."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

LAYERS = 3

LAYER = {
    "attn.q.weight": (8, 6),
    "attn.k.weight": (4, 6),
    "attn.v.weight": (4, 6),
    "mlp.down.weight": (6, 10),
    "norm.weight": (6,),
}

AOA = """\
# a comment
layers.$LAYER_ID.attn.q.weight, layers.$LAYER_ID.attn.k.weight, layers.$LAYER_ID.attn.v.weight \
-> layers.$LAYER_ID.attn.qkv.weight, fused_qkv, num_heads=4, num_kv_heads=2, axis=0
layers.$LAYER_ID.mlp.down.weight^T -> layers.$LAYER_ID.mlp.down.weight
head.weight -> head.weight, src_dtype='float32', dst_dtype='bfloat16'
rotary.inv_freq -> _
"""


def state() -> dict[str, Tensor]:
    """The tensors of the folder."""
    generator = torch.Generator().manual_seed(0)
    out = {
        f"layers.{layer}.{name}": torch.randn(shape, generator=generator).bfloat16()
        for layer in range(LAYERS)
        for name, shape in LAYER.items()
    }
    out["head.weight"] = torch.randn(12, 6, generator=generator)
    out["rotary.inv_freq"] = torch.randn(3, generator=generator)
    return out


def mapped(source: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the mapping makes of them, written out in torch."""
    out = {}
    for layer in range(LAYERS):
        here = f"layers.{layer}."
        # Two groups, each with two heads of q, one of k and one of v; a head has two rows.
        parts = [source[f"{here}attn.{one}.weight"].view(2, -1, 6) for one in "qkv"]
        out[f"{here}attn.qkv.weight"] = torch.cat(parts, 1).view(16, 6)
        out[f"{here}mlp.down.weight"] = source[f"{here}mlp.down.weight"].T.contiguous()
        out[f"{here}norm.weight"] = source[f"{here}norm.weight"]
    out["head.weight"] = source["head.weight"].bfloat16()
    return out


def write_folder(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Two safetensors files and their index."""
    folder.mkdir()
    names = sorted(tensors)
    places = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file = f"model-{number + 1:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
