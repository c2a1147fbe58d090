# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A tiny Llama that DeepSpeed itself cuts over tensor-parallel ranks: train, save and resume."""

from pathlib import Path
from typing import Any

import torch

from flexckpt.model import Shard
from tests.flexckpt.deepspeed.jobs import LAST, SAVED


def make_engine(stage: int, tp: int, seed: int) -> Any:
    import deepspeed
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
    }
    if tp > 1:
        settings["tensor_parallel"] = {"autotp_size": tp}
    model = LlamaForCausalLM(config)
    engine, *_ = deepspeed.initialize(model=model, config=settings, dist_init_required=False)
    return engine


def train(engine: Any, first: int, stop: int) -> list[float]:
    losses = []
    for step in range(first, stop):
        tokens = torch.randint(0, 32, (1, 8), generator=torch.Generator().manual_seed(step))
        loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def make(root: Path, stage: int, tp: int) -> tuple[list[Shard], list[float]]:
    """Save after some steps, and go on: the shards at the checkpoint, and the losses after it."""
    from flexckpt.interop.deepspeed import from_engine

    engine = make_engine(stage, tp, seed=0)
    train(engine, 0, SAVED)
    engine.save_checkpoint(str(root), tag="step")
    shards = from_engine(engine)
    for shard in shards:
        shard.tensor = shard.tensor.clone()
    return shards, train(engine, SAVED, LAST)


def resume(path: Path, stage: int, tp: int, save_to: Path | None = None) -> list[float]:
    """Load into an engine with other weights, save that if asked to; losses of its steps."""
    import flexckpt
    from flexckpt.interop.deepspeed import from_engine, load_into_engine

    engine = make_engine(stage, tp, seed=5)
    load_into_engine(engine, path)
    if save_to is not None:
        flexckpt.save(from_engine(engine), save_to).wait()
    return train(engine, SAVED, LAST)
