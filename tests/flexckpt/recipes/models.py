# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tiny models with random weights, what transformers writes of them, and their logits."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

# No two sizes of a matrix are equal, so that a missing transpose shows. The kernel for experts
# wants rows of whole 16 bytes.
_SIZES = {
    "vocab_size": 33,
    "hidden_size": 20,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_SHORT_HEADS = {**_SIZES, "head_dim": 6}
_EXPERTS = {"num_experts_per_tok": 2, "num_hidden_layers": 3, "moe_intermediate_size": 8}
_LATENT = {
    **_SIZES,
    **_EXPERTS,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 6,
    "qk_nope_head_dim": 8,
}

# Name -> (family of recipes, configuration).
CONFIGS: dict[str, tuple[str, Any]] = {
    "llama": ("llama", lambda: transformers.LlamaConfig(**_SHORT_HEADS)),
    "llama with biases, tied": (
        "llama",
        lambda: transformers.LlamaConfig(
            **_SHORT_HEADS, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
        ),
    ),
    "mistral": ("llama", lambda: transformers.MistralConfig(**_SHORT_HEADS)),
    "qwen2": ("qwen2", lambda: transformers.Qwen2Config(**_SHORT_HEADS)),
    "qwen3": ("qwen3", lambda: transformers.Qwen3Config(**_SHORT_HEADS)),
    "qwen3_moe": (
        "qwen3_moe",
        lambda: transformers.Qwen3MoeConfig(
            **{**_SHORT_HEADS, **_EXPERTS}, num_experts=4, mlp_only_layers=[1]
        ),
    ),
    # More than ten experts: their order must be that of numbers.
    "mixtral": (
        "mixtral",
        lambda: transformers.MixtralConfig(**_SHORT_HEADS, num_local_experts=11),
    ),
    "deepseek_v3": (
        "deepseek_v3",
        lambda: transformers.DeepseekV3Config(**_LATENT, q_lora_rank=14),
    ),
    "deepseek_v3 without q_lora": (
        "deepseek_v3",
        lambda: transformers.DeepseekV3Config(**_LATENT, q_lora_rank=None),
    ),
    "gpt2": (
        "gpt2",
        lambda: transformers.GPT2Config(
            vocab_size=33,
            n_embd=20,
            n_inner=12,
            n_layer=2,
            n_head=4,
            n_positions=16,
            bos_token_id=1,
            eos_token_id=2,
        ),
    ),
    "gpt_oss": (
        "gpt_oss",
        lambda: transformers.GptOssConfig(
            **_SHORT_HEADS,
            num_local_experts=11,
            num_experts_per_tok=2,
            sliding_window=16,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        ),
    ),
}


@functools.cache
def make_model(name: str) -> Any:
    """A model whose every parameter and buffer in its files is random, norms and biases, too."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name][1]())
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.randn_like(tensor) * 0.3)
    return model.eval()


@functools.cache
def files_of(name: str) -> dict[str, Tensor]:
    """The tensors that save_pretrained writes, under their names in the files."""
    with tempfile.TemporaryDirectory() as folder:
        make_model(name).save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def logits(model: Any) -> Tensor:
    tokens = torch.arange(2 * 9).reshape(2, 9) % 33
    with torch.no_grad():
        out: Tensor = model(tokens).logits
    return out


def read_back(folder: Path) -> Any:
    """What from_pretrained makes of a folder; it must find every tensor and no other."""
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()
