# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The layouts of the recipes, written out with torch: what each tensor parallel rank should hold.

Ranks are cut out of the Hugging Face tensors first and fused then, as the frameworks do it; the
mapping language goes the other way around.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


class Source:
    """Tensors of Hugging Face files, and cuts of them for one rank."""

    def __init__(self, tensors: Tensors, config: Any, rank: int, tp: int) -> None:
        self.left = dict(tensors)
        self.rank, self.tp = rank, tp
        self.heads = config.num_attention_heads
        self.kv_heads = getattr(config, "num_key_value_heads", self.heads)
        self.layers = config.num_hidden_layers
        self.config = config

    def has(self, name: str) -> bool:
        return name in self.left

    def take(self, name: str, axis: int | None = None) -> Tensor:
        """A tensor, each of which may be asked for once; of ``axis`` the part of this rank."""
        tensor = self.left.pop(name)
        return tensor if axis is None else tensor.tensor_split(self.tp, axis)[self.rank]


def grouped(q: Tensor, k: Tensor, v: Tensor, groups: int) -> Tensor:
    """Rows of [q, ..., q, k, v] per group of query heads that share a head of keys and values."""
    parts = [t.reshape(groups, -1, *t.shape[1:]) for t in (q, k, v)]
    return torch.cat(parts, 1).flatten(0, 1)


def qkv(source: Source, prefix: str, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = (source.take(f"{prefix}.{p}_proj.{kind}", 0) for p in "qkv")
    return q, k, v


def kinds(source: Source, name: str) -> list[str]:
    return [kind for kind in ("weight", "bias") if source.has(f"{name}.{kind}")]


def put(out: Tensors, name: str, tensor: Tensor) -> None:
    assert name not in out
    out[name] = tensor


# Megatron


def megatron(source: Source) -> Tensors:
    out: Tensors = {}
    put(out, "embedding.word_embeddings.weight", source.take("model.embed_tokens.weight", 0))
    put(out, "decoder.final_layernorm.weight", source.take("model.norm.weight"))
    if source.has("lm_head.weight"):
        put(out, "output_layer.weight", source.take("lm_head.weight", 0))
    for n in range(source.layers):
        old, new = f"model.layers.{n}", f"decoder.layers.{n}"
        if source.has(f"{old}.self_attn.kv_b_proj.weight"):
            _latent_attention(source, out, old, new)
        else:
            _megatron_attention(source, out, old, new)
        norm = source.take(f"{old}.post_attention_layernorm.weight")
        dense = source.has(f"{old}.mlp.gate_proj.weight")
        put(
            out,
            f"{new}.mlp.linear_fc1.layer_norm_weight"
            if dense
            else f"{new}.pre_mlp_layernorm.weight",
            norm,
        )
        _megatron_mlp(source, out, old, new)
    return out


def _megatron_attention(source: Source, out: Tensors, old: str, new: str) -> None:
    o, n = f"{old}.self_attn", f"{new}.self_attention"
    put(out, f"{n}.linear_qkv.layer_norm_weight", source.take(f"{old}.input_layernorm.weight"))
    for kind in kinds(source, f"{o}.q_proj"):
        q, k, v = qkv(source, o, kind)
        put(out, f"{n}.linear_qkv.{kind}", grouped(q, k, v, source.kv_heads // source.tp))
    put(out, f"{n}.linear_proj.weight", source.take(f"{o}.o_proj.weight", 1))
    if source.has(f"{o}.o_proj.bias"):
        put(out, f"{n}.linear_proj.bias", source.take(f"{o}.o_proj.bias"))
    for x in "qk":
        if source.has(f"{o}.{x}_norm.weight"):
            put(out, f"{n}.{x}_layernorm.weight", source.take(f"{o}.{x}_norm.weight"))
    if source.has(f"{o}.sinks"):
        put(out, f"{n}.core_attention.softmax_offset", source.take(f"{o}.sinks", 0))


def _latent_attention(source: Source, out: Tensors, old: str, new: str) -> None:
    o, n = f"{old}.self_attn", f"{new}.self_attention"
    put(out, f"{new}.input_layernorm.weight", source.take(f"{old}.input_layernorm.weight"))
    table: list[tuple[str, str, int | None]] = [
        ("q_proj.weight", "linear_q_proj.weight", 0),
        ("q_a_proj.weight", "linear_q_down_proj.weight", None),
        ("q_a_layernorm.weight", "linear_q_up_proj.layer_norm_weight", None),
        ("q_b_proj.weight", "linear_q_up_proj.weight", 0),
        ("kv_a_proj_with_mqa.weight", "linear_kv_down_proj.weight", None),
        ("kv_a_layernorm.weight", "linear_kv_up_proj.layer_norm_weight", None),
        ("kv_b_proj.weight", "linear_kv_up_proj.weight", 0),
        ("o_proj.weight", "linear_proj.weight", 1),
    ]
    for a, b, axis in table:
        if source.has(f"{o}.{a}"):
            put(out, f"{n}.{b}", source.take(f"{o}.{a}", axis))


def _megatron_mlp(source: Source, out: Tensors, old: str, new: str) -> None:
    router = {
        "mlp.gate.weight": "weight",
        "block_sparse_moe.gate.weight": "weight",
        "mlp.router.weight": "weight",
        "mlp.router.bias": "bias",
        "mlp.gate.e_score_correction_bias": "expert_bias",
    }
    for a, b in router.items():
        if source.has(f"{old}.{a}"):
            put(out, f"{new}.mlp.router.{b}", source.take(f"{old}.{a}"))
    for part in ("mlp", "mlp.shared_experts"):
        for kind in kinds(source, f"{old}.{part}.gate_proj"):
            put(out, f"{new}.{part}.linear_fc1.{kind}", gate_up(source, f"{old}.{part}", kind))
        for kind in kinds(source, f"{old}.{part}.down_proj"):
            down = source.take(f"{old}.{part}.down_proj.{kind}", 1 if kind == "weight" else None)
            put(out, f"{new}.{part}.linear_fc2.{kind}", down)
    experts = f"{new}.mlp.experts"
    if source.has(f"{old}.mlp.experts.gate_up_proj"):
        _unpack_gpt_oss(source, out, f"{old}.mlp.experts", experts)
    for e in range(64):
        for gate, up, down in (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")):
            for part in ("mlp", "block_sparse_moe"):
                expert = f"{old}.{part}.experts.{e}"
                if source.has(f"{expert}.{gate}.weight"):
                    fc1 = gate_up(source, expert, "weight", gate, up)
                    put(out, f"{experts}.linear_fc1.weight{e}", fc1)
                    fc2 = source.take(f"{expert}.{down}.weight", 1)
                    put(out, f"{experts}.linear_fc2.weight{e}", fc2)


def gate_up(
    source: Source, prefix: str, kind: str, gate: str = "gate_proj", up: str = "up_proj"
) -> Tensor:
    return torch.cat([source.take(f"{prefix}.{one}.{kind}", 0) for one in (gate, up)])


def _unpack_gpt_oss(source: Source, out: Tensors, old: str, new: str) -> None:
    def cut(tensor: Tensor, axis: int) -> Tensor:
        return tensor.tensor_split(source.tp, axis)[source.rank]

    both, bias = source.take(f"{old}.gate_up_proj"), source.take(f"{old}.gate_up_proj_bias")
    down, down_bias = source.take(f"{old}.down_proj"), source.take(f"{old}.down_proj_bias")
    for e in range(len(both)):
        gate, up = both[e, :, ::2].T, both[e, :, 1::2].T
        put(out, f"{new}.linear_fc1.weight{e}", torch.cat([cut(gate, 0), cut(up, 0)]))
        gate, up = bias[e, ::2], bias[e, 1::2]
        put(out, f"{new}.linear_fc1.bias{e}", torch.cat([cut(gate, 0), cut(up, 0)]))
        put(out, f"{new}.linear_fc2.weight{e}", cut(down[e].T, 1))
        put(out, f"{new}.linear_fc2.bias{e}", down_bias[e])


def gpt2_megatron(source: Source) -> Tensors:
    out: Tensors = {}
    put(out, "embedding.word_embeddings.weight", source.take("transformer.wte.weight", 0))
    put(out, "embedding.position_embeddings.weight", source.take("transformer.wpe.weight"))
    for kind in ("weight", "bias"):
        norm = source.take(f"transformer.ln_f.{kind}")
        put(out, f"decoder.final_layernorm.{kind}", norm)
    for n in range(source.layers):
        old, new = f"transformer.h.{n}", f"decoder.layers.{n}"
        attention, mlp = f"{new}.self_attention", f"{new}.mlp"
        for kind in ("weight", "bias"):
            q, k, v = _gpt2_qkv(source, f"{old}.attn.c_attn.{kind}")
            both = grouped(q, k, v, source.heads // source.tp)
            put(out, f"{attention}.linear_qkv.{kind}", both)
            ln_1, ln_2 = (source.take(f"{old}.ln_{i}.{kind}") for i in (1, 2))
            put(out, f"{attention}.linear_qkv.layer_norm_{kind}", ln_1)
            put(out, f"{mlp}.linear_fc1.layer_norm_{kind}", ln_2)
        for a, b, axis in (
            ("attn.c_proj", f"{attention}.linear_proj", 1),
            ("mlp.c_fc", f"{mlp}.linear_fc1", 0),
            ("mlp.c_proj", f"{mlp}.linear_fc2", 1),
        ):
            weight = source.take(f"{old}.{a}.weight", 1 - axis).T
            put(out, f"{b}.weight", weight)
            put(out, f"{b}.bias", source.take(f"{old}.{a}.bias", 0 if axis == 0 else None))
    return out


def _gpt2_qkv(source: Source, name: str) -> list[Tensor]:
    """The rows of q, k and v of a rank; transposing a bias does nothing."""
    rows = source.take(name).mT if name.endswith("weight") else source.take(name)
    return [part.tensor_split(source.tp)[source.rank] for part in rows.chunk(3)]


# Fused, as in vLLM


def fused(source: Source) -> Tensors:
    out: Tensors = {}
    for n in range(source.layers):
        layer = f"model.layers.{n}"
        attention = f"{layer}.self_attn"
        for kind in kinds(source, f"{attention}.k_proj"):
            put(out, f"{attention}.qkv_proj.{kind}", torch.cat(qkv(source, attention, kind)))
        if source.has(f"{attention}.q_a_proj.weight"):
            names = ("q_a_proj", "kv_a_proj_with_mqa")
            down = [source.take(f"{attention}.{name}.weight") for name in names]
            put(out, f"{attention}.fused_qkv_a_proj.weight", torch.cat(down))
        for part in ("mlp", "mlp.shared_experts"):
            for kind in kinds(source, f"{layer}.{part}.gate_proj"):
                fc1 = gate_up(source, f"{layer}.{part}", kind)
                put(out, f"{layer}.{part}.gate_up_proj.{kind}", fc1)
        for part, gate, up, down in (
            ("mlp.experts", "gate_proj", "up_proj", "down_proj"),
            ("block_sparse_moe.experts", "w1", "w3", "w2"),
        ):
            w13, w2, e = [], [], 0
            while source.has(f"{layer}.{part}.{e}.{gate}.weight"):
                w13.append(gate_up(source, f"{layer}.{part}.{e}", "weight", gate, up))
                w2.append(source.take(f"{layer}.{part}.{e}.{down}.weight", 1))
                e += 1
            if w13:
                put(out, f"{layer}.{part}.w13_weight", torch.stack(w13))
                put(out, f"{layer}.{part}.w2_weight", torch.stack(w2))
        experts = f"{layer}.mlp.experts"
        if source.has(f"{experts}.gate_up_proj"):
            put(out, f"{experts}.w13_weight", source.take(f"{experts}.gate_up_proj", 2).mT)
            put(out, f"{experts}.w13_bias", source.take(f"{experts}.gate_up_proj_bias", 1))
            put(out, f"{experts}.w2_weight", source.take(f"{experts}.down_proj", 1).mT)
            put(out, f"{experts}.w2_bias", source.take(f"{experts}.down_proj_bias"))
    return out | rest(source)


def rest(source: Source) -> Tensors:
    """What keeps its name and is cut in the usual way."""
    axes = {
        "embed_tokens.weight": 0,
        "lm_head.weight": 0,
        "o_proj.weight": 1,
        "down_proj.weight": 1,
        "q_b_proj.weight": 0,
        "kv_b_proj.weight": 0,
        "self_attn.q_proj.weight": 0,
        "sinks": 0,
        "wte.weight": 0,
    }
    return {
        name: source.take(name, next((axes[end] for end in axes if name.endswith(end)), None))
        for name in list(source.left)
    }


def gpt2_fused(source: Source) -> Tensors:
    out: Tensors = {}
    for n in range(source.layers):
        layer = f"transformer.h.{n}"
        for kind in ("weight", "bias"):
            name = f"{layer}.attn.c_attn.{kind}"
            put(out, name, torch.cat(_gpt2_qkv(source, name)))
        for name, axis in (("attn.c_proj", 1), ("mlp.c_fc", 0), ("mlp.c_proj", 1)):
            put(out, f"{layer}.{name}.weight", source.take(f"{layer}.{name}.weight", 1 - axis).T)
        name = f"{layer}.mlp.c_fc.bias"
        put(out, name, source.take(name, 0))
    return out | rest(source)


# Transposed and fused, as in PaddleFormers


def paddle(source: Source) -> Tensors:
    out: Tensors = {}
    for n in range(source.layers):
        layer = f"model.layers.{n}"
        attention, mlp = f"{layer}.self_attn", f"{layer}.mlp"
        for kind in kinds(source, f"{attention}.q_proj"):
            q, k, v = qkv(source, attention, kind)
            both = grouped(q, k, v, source.kv_heads // source.tp)
            put(out, f"{attention}.qkv_proj.{kind}", both.T if kind == "weight" else both)
        for kind in kinds(source, f"{mlp}.gate_proj"):
            both = gate_up(source, mlp, kind)
            put(out, f"{mlp}.up_gate_proj.{kind}", both.T if kind == "weight" else both)
        for name in (f"{attention}.o_proj.weight", f"{mlp}.down_proj.weight"):
            put(out, name, source.take(name, 1).T)
    return out | rest(source)


LAYOUTS: dict[str, Callable[[Source], Tensors]] = {
    "megatron": megatron,
    "gpt2_megatron": gpt2_megatron,
    "fused": fused,
    "gpt2_fused": gpt2_fused,
    "paddle": paddle,
}


def ranks(recipe: str, tensors: Tensors, config: Any, tp: int) -> list[Tensors]:
    """What every rank holds. Every tensor of the source must have been used."""
    make = LAYOUTS.get(recipe) or LAYOUTS[recipe.rpartition("_")[2]]
    out = []
    for rank in range(tp):
        source = Source(tensors, config, rank, tp)
        out.append(make(source))
        assert not source.left, sorted(source.left)
    return out
