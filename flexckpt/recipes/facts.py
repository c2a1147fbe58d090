# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the recipes need to know of a model, and where its configuration says it, as data."""

from collections.abc import Callable, Mapping
from typing import Any

from flexckpt.errors import FlexckptError

Fields = Mapping[str, Any]
Fact = int | list[int]
Reader = Callable[[Fields], Fact]


def _int(config: Fields, *fields: str) -> int:
    """A positive number, from the first of these fields that is set."""
    for field in fields:
        value = config.get(field)
        if value is not None:
            if type(value) is not int or value < 1:
                raise FlexckptError("ARG101", f"{field} must be a positive number, not {value!r}")
            return value
    raise FlexckptError("ARG101", f"the configuration must have {' or '.join(fields)}")


def _ids(*fields: str) -> Reader:
    """The numbers from 0 up to a count."""
    return lambda config: list(range(_int(config, *fields)))


def _number(*fields: str) -> Reader:
    return lambda config: _int(config, *fields)


def _flag(field: str, default: bool) -> Reader:
    def read(config: Fields) -> int:
        value = config.get(field, default)
        return bool(default if value is None else value)

    return read


def _kv_heads(config: Fields) -> int:
    heads = _int(config, "num_attention_heads")
    kv_heads = _int(config, "num_key_value_heads", "num_attention_heads")
    if heads % kv_heads:
        what = f"num_attention_heads {heads} must be a multiple of num_key_value_heads {kv_heads}"
        raise FlexckptError("ARG101", what)
    return kv_heads


def _never(field: str) -> Reader:
    """A kind of model that a family's recipes do not serve."""

    def read(config: Fields) -> int:
        if config.get(field):
            raise FlexckptError("ARG101", f"models with {field} are not served")
        return False

    return read


def _layers(config: Fields) -> range:
    return range(_int(config, "num_hidden_layers"))


def _qwen3_moe_dense(config: Fields) -> list[int]:
    """Layers without experts."""
    step = config.get("decoder_sparse_step") or 1
    dense = config.get("mlp_only_layers") or []
    return [n for n in _layers(config) if n in dense or (n + 1) % step]


def _deepseek_dense(config: Fields) -> list[int]:
    return list(_layers(config)[: config.get("first_k_dense_replace") or 0])


def _q_lora(config: Fields) -> int:
    """Rows of the down projection of queries; 0 for models without one."""
    return 0 if config.get("q_lora_rank", 1) is None else _int(config, "q_lora_rank")


def _layers_but(dense: Callable[[Fields], list[int]]) -> Reader:
    return lambda config: [n for n in _layers(config) if n not in dense(config)]


_ATTENTION: dict[str, Reader] = {
    "num_heads": _number("num_attention_heads"),
    "num_kv_heads": _kv_heads,
    "attention_bias": _flag("attention_bias", False),
    "tied": _flag("tie_word_embeddings", False),
}

# Family -> fact -> how it is read. Defaults are those of the configurations of transformers.
FAMILIES: dict[str, dict[str, Reader]] = {
    "llama": {**_ATTENTION, "mlp_bias": _flag("mlp_bias", False)},
    "qwen2": _ATTENTION,
    "qwen3": _ATTENTION,
    "qwen3_moe": {
        **_ATTENTION,
        "expert": _ids("num_experts", "num_local_experts"),
        "dense_layer": _qwen3_moe_dense,
        "moe_layer": _layers_but(_qwen3_moe_dense),
    },
    "mixtral": {**_ATTENTION, "expert": _ids("num_local_experts", "num_experts")},
    "deepseek_v3": {
        "tied": _flag("tie_word_embeddings", False),
        "attention_bias": _never("attention_bias"),
        "q_lora": _q_lora,
        "kv_rows": lambda config: _int(config, "kv_lora_rank") + _int(config, "qk_rope_head_dim"),
        "layer": _ids("num_hidden_layers"),  # files hold further ones, for multi-token prediction
        "expert": _ids("n_routed_experts", "num_local_experts"),
        "dense_layer": _deepseek_dense,
        "moe_layer": _layers_but(_deepseek_dense),
    },
    "gpt2": {
        "num_heads": _number("n_head", "num_attention_heads"),
        "tied": _flag("tie_word_embeddings", True),
    },
    "gpt_oss": {
        **_ATTENTION,
        "attention_bias": _flag("attention_bias", True),
        "num_experts": _number("num_local_experts"),
        "hidden_size": _number("hidden_size"),
        "intermediate_size": _number("intermediate_size"),
    },
}
