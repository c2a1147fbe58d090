# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A job with TP 4 x PP 2 x EP 2 sees itself as one device does: its shards tile every tensor."""

from collections import defaultdict
from itertools import product

import numpy as np
import torch

from flexckpt.layout.dtensor import shards_of
from flexckpt.layout.renumber import renumber
from flexckpt.layout.rules import Split, shards_by_rules
from flexckpt.model import Shard

TP, PP, EP = 4, 2, 2
LAYERS, EXPERTS, HIDDEN, FFN, VOCAB = 4, 6, 8, 12, 10

RULES = {
    "*": None,
    "*.word_embeddings.weight": Split(0, VOCAB),
    "output_layer.weight": Split(0, VOCAB),
    "*.linear_qkv.*": 0,
    "*.linear_proj.weight": 1,
    "*.linear_fc1.weight": 0,
    "*.linear_fc2.weight*": 1,
}


def whole_model() -> dict[str, np.ndarray]:
    shapes = {
        "embedding.word_embeddings.weight": (VOCAB, HIDDEN),
        "decoder.final_layernorm.weight": (HIDDEN,),
        "output_layer.weight": (VOCAB, HIDDEN),
    }
    for layer in range(LAYERS):
        at = f"decoder.layers.{layer}"
        shapes[f"{at}.self_attention.linear_qkv.weight"] = (3 * HIDDEN, HIDDEN)
        shapes[f"{at}.self_attention.linear_qkv.bias"] = (3 * HIDDEN,)
        shapes[f"{at}.self_attention.linear_proj.weight"] = (HIDDEN, HIDDEN)
        shapes[f"{at}.self_attention.linear_proj.bias"] = (HIDDEN,)
        shapes[f"{at}.mlp.router.weight"] = (EXPERTS, HIDDEN)
        for expert in range(EXPERTS):
            shapes[f"{at}.mlp.experts.{expert}.linear_fc1.weight"] = (2 * FFN, HIDDEN)
            shapes[f"{at}.mlp.experts.linear_fc2.weight{expert}"] = (HIDDEN, FFN)
    rng = np.random.default_rng(0)
    model = {name: rng.random(shape) for name, shape in shapes.items()}
    moments = {f"{name}@exp_avg": rng.random(shape) for name, shape in shapes.items()}
    return {**model, **moments}


def part(x: np.ndarray, axis: int, tp: int) -> torch.Tensor:
    return torch.tensor(np.split(x, TP, axis)[tp])


def local_state(model: dict[str, np.ndarray], tp: int, pp: int, ep: int) -> dict[str, torch.Tensor]:
    """What the code of such a model would build on one rank: local numbers, local sizes."""
    state = {}
    for suffix in ("", "@exp_avg"):
        vocab = np.zeros((12, HIDDEN))
        if pp == 0:
            name = f"embedding.word_embeddings.weight{suffix}"
            vocab[:VOCAB] = model[name]
            state[name] = part(vocab, 0, tp)
        else:
            name = f"decoder.final_layernorm.weight{suffix}"
            state[name] = torch.tensor(model[name])
            name = f"output_layer.weight{suffix}"
            vocab[:VOCAB] = model[name]
            state[name] = part(vocab, 0, tp)
        for i in range(LAYERS // PP):
            here, there = f"decoder.layers.{i}", f"decoder.layers.{pp * LAYERS // PP + i}"
            for name, axis in (
                ("self_attention.linear_qkv.weight", 0),
                ("self_attention.linear_qkv.bias", 0),
                ("self_attention.linear_proj.weight", 1),
            ):
                state[f"{here}.{name}{suffix}"] = part(model[f"{there}.{name}{suffix}"], axis, tp)
            for name in ("self_attention.linear_proj.bias", "mlp.router.weight"):
                state[f"{here}.{name}{suffix}"] = torch.tensor(model[f"{there}.{name}{suffix}"])
            for e in range(EXPERTS // EP):
                g = ep * EXPERTS // EP + e
                state[f"{here}.mlp.experts.{e}.linear_fc1.weight{suffix}"] = part(
                    model[f"{there}.mlp.experts.{g}.linear_fc1.weight{suffix}"], 0, tp
                )
                state[f"{here}.mlp.experts.linear_fc2.weight{e}{suffix}"] = part(
                    model[f"{there}.mlp.experts.linear_fc2.weight{g}{suffix}"], 1, tp
                )
    return state


def rank_shards(model: dict[str, np.ndarray], tp: int, pp: int, ep: int) -> list[Shard]:
    shards = shards_by_rules(local_state(model, tp, pp, ep), RULES, tp, TP)
    first_expert = ep * EXPERTS // EP
    first = {
        "layers": pp * LAYERS // PP,
        "experts": first_expert,
        "experts.linear_fc2.weight#": first_expert,
    }
    return [
        shard for name, part in renumber(shards, first).items() for shard in shards_of(name, part)
    ]


def test_shards_of_all_ranks_tile_every_tensor() -> None:
    model = whole_model()
    boxes: dict[str, dict[tuple[object, object], np.ndarray]] = defaultdict(dict)
    for tp, pp, ep in product(range(TP), range(PP), range(EP)):
        for shard in rank_shards(model, tp, pp, ep):
            name = shard.key + ("" if shard.state == "weight" else f"@{shard.state}")
            assert shard.global_shape == model[name].shape
            box = (shard.offset, shard.local_shape)
            values = boxes[name].setdefault(box, shard.tensor.numpy())
            assert np.array_equal(values, shard.tensor.numpy()), "replicas are equal"
    assert boxes.keys() == model.keys()
    for name, whole in model.items():
        hits = np.zeros(whole.shape, int)
        for (offset, shape), values in boxes[name].items():
            at = tuple(slice(a, a + n) for a, n in zip(offset, shape, strict=True))
            assert np.array_equal(whole[at], values)
            hits[at] += 1
        assert (hits == 1).all(), name
