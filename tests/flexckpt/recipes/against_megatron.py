# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The recipes for Megatron against models of real Megatron-Core: the same logits.

It wants a Python with megatron-core 0.16.1, so it is no test of the suite. From the root of the
repository::

    python -m tests.flexckpt.recipes.against_megatron

Megatron-Core's own layers are used, as those of TransformerEngine want a GPU. They differ in the
names of norms and in having a module per expert. What Megatron asks of a GPU or of
TransformerEngine on the way is replaced here.
"""

import contextlib
import re
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state, tensor_parallel  # noqa: E402
from megatron.core.fusions.fused_bias_geglu import quick_gelu  # noqa: E402
from megatron.core.models.gpt import GPTModel, gpt_layer_specs  # noqa: E402
from megatron.core.transformer import multi_latent_attention  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402
from megatron.core.transformer.transformer_config import (  # noqa: E402
    MLATransformerConfig,
    TransformerConfig,
)

from flexckpt import recipes, transform  # noqa: E402
from tests.flexckpt.recipes.models import CONFIGS, files_of, logits, make_model  # noqa: E402

TOLERANCE = 2e-6  # logits are near 1; kernels add up in another order

# TransformerEngine's layers hold the norm that goes before them.
LOCAL_NAMES = {
    r"self_attention\.linear_qkv\.layer_norm_": "input_layernorm.",
    r"mlp\.linear_fc1\.layer_norm_": "pre_mlp_layernorm.",
    r"linear_(q|kv)_up_proj\.layer_norm_": r"\1_layernorm.",
    r"experts\.(linear_fc\d)\.(weight|bias)(\d+)": r"experts.local_experts.\3.\1.\2",
}


class Attention(torch.nn.Module):
    """Causal attention whose values may be narrower than its keys."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        self.scale = (config.qk_head_dim + config.qk_pos_emb_head_dim) ** -0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **_: Any) -> Tensor:
        q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))
        scores = (q @ k.mT * self.scale).masked_fill(mask, float("-inf"))
        return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(2)


def prepare() -> None:
    """Start the groups of one process, and stand in for what is missing on a CPU."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    parallel_state.initialize_model_parallel(1, 1)
    fork = lambda self, name="": contextlib.nullcontext()  # noqa: E731
    tensor_parallel.random.CudaRNGStatesTracker.fork = fork
    moe_utils.te_general_gemm = None
    for name in ("TELinear", "TEColumnParallelLinear"):
        if not isinstance(getattr(multi_latent_attention, name, None), type):
            setattr(multi_latent_attention, name, type(name, (), {}))


def settings(family: str, config: Any) -> dict[str, Any]:
    """The arguments of Megatron's configuration for one of transformers."""
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", heads)
    out: dict[str, Any] = {
        "num_layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "num_attention_heads": heads,
        "num_query_groups": kv_heads,
        "kv_channels": getattr(config, "head_dim", None) or config.hidden_size // heads,
        "ffn_hidden_size": getattr(config, "intermediate_size", None) or config.n_inner,
        "normalization": "RMSNorm",
        "layernorm_epsilon": getattr(config, "rms_norm_eps", 1e-5),
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "add_bias_linear": bool(getattr(config, "attention_bias", False)),
        "add_qkv_bias": family == "qwen2",
        "qk_layernorm": family in ("qwen3", "qwen3_moe", "deepseek_v3"),
        "use_cpu_initialization": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "bias_activation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_dropout_fusion": False,
        "apply_rope_fusion": False,
    }
    if family == "gpt2":
        gelu = lambda x: F.gelu(x, approximate="tanh")  # noqa: E731
        out |= {"normalization": "LayerNorm", "gated_linear_unit": False, "activation_func": gelu}
        out |= {"add_bias_linear": True}
    if family in ("qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss"):
        out |= expert_settings(family, config)
    return out


def expert_settings(family: str, config: Any) -> dict[str, Any]:
    layers = config.num_hidden_layers
    dense = getattr(config, "mlp_only_layers", ())
    dense = dense or range(getattr(config, "first_k_dense_replace", 0))
    width = getattr(config, "moe_intermediate_size", config.intermediate_size)
    out: dict[str, Any] = {
        "num_moe_experts": getattr(config, "n_routed_experts", None) or config.num_local_experts,
        "moe_layer_freq": [int(n not in dense) for n in range(layers)],
        "moe_router_topk": config.num_experts_per_tok,
        "moe_router_pre_softmax": not getattr(config, "norm_topk_prob", True),
        "moe_ffn_hidden_size": width,
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "allgather",
    }
    if family == "gpt_oss":
        out |= {"softmax_type": "learnable", "activation_func": quick_gelu}
        out |= {"glu_linear_offset": 1.0, "activation_func_clamp_value": config.swiglu_limit}
    if family == "deepseek_v3":
        out |= {
            "multi_latent_attention": True,
            "q_lora_rank": config.q_lora_rank,
            "kv_lora_rank": config.kv_lora_rank,
            "qk_head_dim": config.qk_nope_head_dim,
            "qk_pos_emb_head_dim": config.qk_rope_head_dim,
            "v_head_dim": config.v_head_dim,
            "rope_type": "rope",
            "rotary_base": config.rope_parameters["rope_theta"],
            "moe_router_num_groups": config.n_group,
            "moe_router_group_topk": config.topk_group,
            "moe_router_score_function": "sigmoid",
            "moe_router_pre_softmax": True,
            "moe_router_enable_expert_bias": True,
            "moe_router_topk_scaling_factor": config.routed_scaling_factor,
            "moe_shared_expert_intermediate_size": width * config.n_shared_experts,
        }
    return out


def megatron_model(family: str, config: Any) -> Any:
    latent = family == "deepseek_v3"
    kind = MLATransformerConfig if latent else TransformerConfig
    own = kind(**settings(family, config))
    if own.num_moe_experts:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(
            own, use_transformer_engine=False, normalization=own.normalization
        )
        for layer in spec.layer_specs if latent else ():
            layer.submodules.self_attention.submodules.core_attention = Attention
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            qk_layernorm=own.qk_layernorm, normalization=own.normalization
        )
    rope = getattr(config, "rope_parameters", None)
    return GPTModel(
        own,
        spec,
        vocab_size=config.vocab_size,
        max_sequence_length=config.max_position_embeddings,
        share_embeddings_and_output_weights=config.tie_word_embeddings,
        position_embedding_type="rope" if rope else "learned_absolute",
        rotary_base=rope["rope_theta"] if rope else 10000,
    ).eval()


def difference(name: str) -> float:
    """How far apart the logits are."""
    family, original = CONFIGS[name][0], make_model(name)
    mapped = transform(files_of(name), recipes.load(f"{family}_megatron", original.config))
    tensors = {}
    for key, tensor in mapped.items():
        for pattern, local in LOCAL_NAMES.items():
            key = re.sub(pattern, local, key)
        tensors[key] = tensor
    model = megatron_model(family, original.config)
    wanted = {n for n, value in model.state_dict().items() if isinstance(value, Tensor)}
    if wanted != tensors.keys():
        raise SystemExit(f"{name}: names differ: {sorted(wanted ^ tensors.keys())}")
    model.load_state_dict(tensors, strict=False)  # the rest are buffers of TransformerEngine
    tokens = torch.arange(2 * 9).reshape(2, 9) % 33
    positions = torch.arange(9).expand(2, 9)
    hidden = torch.ones(9, 9, dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        found = model(tokens, positions, hidden)
    return float((found - logits(original)).abs().max())


def main() -> int:
    torch.set_num_threads(1)
    prepare()
    worst = 0.0
    for name in CONFIGS:
        one = difference(name)
        print(f"{name}: {one:.1e}")
        worst = max(worst, one)
    dist.destroy_process_group()
    return 0 if worst < TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
