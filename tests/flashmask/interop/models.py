# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tiny models with random weights, batches of every kind, and an eye on the ops that run."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from flashmask.interop.transformers import NAME

LENGTH = 144  # more than one tile of 128, and the size of nothing else
VOCABULARY = 61
WINDOW = 24

# How this version of transformers calls the argument that holds keys and values.
_arguments = inspect.signature(masking_utils.create_causal_mask).parameters
CACHE = "cache" if "cache" in _arguments else "past_key_values"

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
}

GQA = {**SIZES, "num_key_value_heads": 2, "head_dim": 16}

CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**GQA),
    "qwen3": lambda: transformers.Qwen3Config(**GQA),
    "mistral": lambda: transformers.MistralConfig(**GQA, sliding_window=WINDOW),
    "gemma3": lambda: transformers.Gemma3TextConfig(
        **GQA, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
}

ENCODERS = {
    "bert": lambda: transformers.BertConfig(
        **SIZES, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0
    ),
    "modernbert": lambda: transformers.ModernBertConfig(
        **SIZES, local_attention=2 * WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
}


def decoder(name: str, **changes: Any) -> Any:
    config = CONFIGS[name]()
    config.use_cache = False
    for key, value in changes.items():
        setattr(config, key, value)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=NAME)


def encoder(name: str) -> Any:
    config = ENCODERS[name]()
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=NAME)


def with_attention(model: Any, name: str, dtype: torch.dtype) -> Any:
    """A copy of a model with another attention and dtype."""
    other = copy.deepcopy(model).to(dtype)
    other.set_attn_implementation(name)
    return other


def tokens(batch: int = 2, length: int = LENGTH) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, length))


def batch_of(kind: str, batch: int = 2, length: int = LENGTH) -> dict[str, Tensor]:
    """What a model is called with: plain, left- or right-padded, or packed."""
    inputs = {"input_ids": tokens(batch, length)}
    if kind == "packed":
        lengths = ([50, 1, 93], [20, 110, 14])
        inputs["position_ids"] = torch.stack(
            [torch.cat([torch.arange(n) for n in row]) for row in lengths]
        )
    if kind in ("left", "right"):
        padding = torch.tensor([[30], [0]])
        position = torch.arange(length)
        keep = position >= padding if kind == "left" else position < length - padding
        inputs["attention_mask"] = keep.long()
    return inputs


def kept(inputs: dict[str, Tensor]) -> Tensor:
    """The positions that are no padding, bool ``[B, S]``."""
    mask = inputs.get("attention_mask")
    return torch.ones_like(inputs["input_ids"]).bool() if mask is None else mask.bool()


class Watch(TorchDispatchMode):
    """Counts the calls of the attention op and notes every tensor as large as a matrix of S x S."""

    def __init__(self, length: int = LENGTH) -> None:
        super().__init__()
        self.length = length
        self.calls = 0
        self.matrices: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.flashmask.forward.default:
            self.calls += 1
        for tensor in torch.utils._pytree.tree_leaves(result):
            if isinstance(tensor, Tensor) and list(tensor.shape).count(self.length) > 1:
                self.matrices.append(f"{func} -> {tuple(tensor.shape)}")
        return result
