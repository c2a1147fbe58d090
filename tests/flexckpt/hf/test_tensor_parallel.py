# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Between Hugging Face folders and two tensor parallel ranks of other frameworks, through files."""

import pytest
import torch
from torch import Tensor

import flexckpt
from flexckpt import Shard, TensorSpec, recipes
from flexckpt.interop.transformers import save_pretrained
from flexckpt.testing import write_checkpoint
from tests.flexckpt.recipes.layouts import ranks
from tests.flexckpt.recipes.models import files_of, logits, make_model, read_back
from tests.flexckpt.recipes.test_recipes import sharded_specs

CASES = [
    ("llama with biases, tied", "llama_megatron"),
    ("qwen2", "qwen2_paddle"),
    ("qwen3_moe", "qwen3_moe_fused"),
    ("mixtral", "mixtral_megatron"),
    ("deepseek_v3", "deepseek_v3_megatron"),
    ("gpt2", "gpt2_megatron"),
    ("gpt_oss", "gpt_oss_fused"),
]


def shards_of(specs: dict[str, TensorSpec], rank: int, tensors: dict[str, Tensor]) -> list[Shard]:
    """What a rank holds, as it would describe it."""
    return [
        Shard(name, tensor, specs[name].shape, specs[name].shards[rank][0])
        if specs[name].shards
        else Shard(name, tensor, tensor.shape, (0,) * tensor.ndim)
        for name, tensor in tensors.items()
    ]


@pytest.mark.parametrize(("model", "recipe"), CASES, ids=[recipe for _, recipe in CASES])
def test_there_and_back(tmp_path, model, recipe):
    original = make_model(model)
    program = recipes.load(recipe, original.config)
    whole = ranks(recipe, files_of(model), original.config, 1)[0]
    parts = ranks(recipe, files_of(model), original.config, 2)
    specs = sharded_specs(whole, parts)

    original.save_pretrained(tmp_path / "hf")
    held = []
    for rank in range(2):
        empty = {name: torch.full_like(t, 7) for name, t in parts[rank].items()}
        held.append(shards_of(specs, rank, empty))
    # One process that holds the shards of both ranks.
    flexckpt.load([*held[0], *held[1]], tmp_path / "hf", aoa=program)
    for shards, part in zip(held, parts, strict=True):
        for shard in shards:
            assert torch.equal(shard.tensor, part[shard.key]), shard.key

    write_checkpoint(tmp_path / "sharded", ranks=held)
    save_pretrained(
        tmp_path / "sharded",
        tmp_path / "back",
        config=original.config,
        aoa=program,
        reverse=True,
        shard_size="6KB",
    )
    assert torch.equal(logits(read_back(tmp_path / "back")), logits(original))
