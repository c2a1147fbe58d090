# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Every recipe both ways: the layouts as torch makes them, and equal logits after the way back."""

import json

import pytest
import torch
from torch import Tensor

from flexckpt import TensorSpec, recipes, transform
from flexckpt.errors import FlexckptError
from flexckpt.io.huggingface_writer import create_files, plan_files
from tests.flexckpt.recipes.layouts import ranks
from tests.flexckpt.recipes.models import CONFIGS, files_of, logits, make_model, read_back

CASES = [
    pytest.param(model, recipe, id=f"{model}-{recipe.removeprefix(family + '_')}".replace(" ", "_"))
    for model, (family, _) in CONFIGS.items()
    for recipe in recipes.names()
    if recipe.rpartition("_")[0] == family
]
IN_MEMORY = [case for case in CASES if case.values[1].endswith("_transformers")]
LAID_OUT = [case for case in CASES if case not in IN_MEMORY]


def specs_of(tensors: dict[str, Tensor]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(tuple(t.shape), t.dtype) for name, t in tensors.items()}


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def sharded_specs(
    whole: dict[str, Tensor], parts: list[dict[str, Tensor]]
) -> dict[str, TensorSpec]:
    """The shards of tensors of which each rank holds a part along one axis, or all the same."""
    specs = {}
    for name, one in whole.items():
        tensors = [part[name] for part in parts]
        axis = next((a for a in range(one.ndim) if tensors[0].shape[a] != one.shape[a]), None)
        shards = None
        if axis is not None:
            lengths = [t.shape[axis] for t in tensors]
            assert sum(lengths) == one.shape[axis]
            starts = [sum(lengths[:rank]) for rank in range(len(tensors))]
            offsets = [tuple(n if a == axis else 0 for a in range(one.ndim)) for n in starts]
            shards = tuple((o, tuple(t.shape)) for o, t in zip(offsets, tensors, strict=True))
        specs[name] = TensorSpec(tuple(one.shape), one.dtype, shards)
    return specs


@pytest.mark.parametrize(("model", "recipe"), LAID_OUT)
def test_layout_of_one_rank(model, recipe):
    config, source = make_model(model).config, files_of(model)
    found = transform(source, recipes.load(recipe, config))
    assert_equal(found, ranks(recipe, source, config, 1)[0])


@pytest.mark.parametrize(("model", "recipe"), LAID_OUT)
def test_layout_of_two_ranks_and_back(model, recipe):
    config, source = make_model(model).config, files_of(model)
    program = recipes.load(recipe, config)
    parts = ranks(recipe, source, config, 2)
    specs = sharded_specs(ranks(recipe, source, config, 1)[0], parts)
    found = transform(source, program, specs)
    stored = {}
    for name, spec in specs.items():
        wanted = [part[name] for part in parts]
        shards = found[name] if spec.shards else [found[name]] * 2
        assert len(shards) == 2
        assert all(torch.equal(a, b) for a, b in zip(shards, wanted, strict=True)), name
        stored[name] = torch.zeros(spec.shape)
        for (offset, shape), shard in zip(spec.shards or (), shards, strict=False):
            at = tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
            stored[name][at] = shard
        if not spec.shards:
            stored[name] = shards[0]
    back = transform(stored, program, specs_of(source), source_specs=specs, reverse=True)
    assert_equal(back, source)


@pytest.mark.parametrize(("model", "recipe"), IN_MEMORY)
def test_layout_of_the_modules_of_transformers(model, recipe):
    config, source = make_model(model).config, files_of(model)
    found = transform(source, recipes.load(recipe, config))
    assert_equal(found, make_model(model).state_dict())


@pytest.mark.parametrize(("model", "recipe"), CASES)
def test_logits_after_the_way_back(model, recipe, tmp_path):
    original = make_model(model)
    source = files_of(model)
    program = recipes.load(recipe, original.config)
    there = transform(source, program)
    wanted = specs_of(source) if recipe == "gpt_oss_megatron" else None  # it has a reshape
    back = transform(there, program, wanted, reverse=True)
    assert_equal(back, source)
    plan = plan_files(specs_of(back), shard_size=4000)
    create_files(tmp_path, plan)
    for file in plan.files:
        with (tmp_path / file.name).open("r+b") as out:
            for name, entry in file.tensors.items():
                out.seek(entry.start)
                out.write(back[name].numpy().tobytes())
    original.config.save_pretrained(tmp_path)
    assert torch.equal(logits(read_back(tmp_path)), logits(original))


@pytest.mark.parametrize("recipe", [r for r in recipes.names() if r.startswith("deepseek_v3")])
def test_layers_for_multi_token_prediction_are_left_alone(recipe):
    config, source = make_model("deepseek_v3").config, files_of("deepseek_v3")
    names = ("enorm.weight", "input_layernorm.weight", "mlp.experts.0.gate_proj.weight")
    further = {f"model.layers.{config.num_hidden_layers}.{n}": torch.ones(2, 3) for n in names}
    program = recipes.load(recipe, config)
    found = transform({**source, **further}, program)
    assert_equal(found, {**transform(source, program), **further})


def test_every_recipe_is_tried():
    assert {case.values[1] for case in CASES} == set(recipes.names())


def test_configurations_of_files_serve_as_well(tmp_path):
    config = make_model("qwen3_moe").config
    config.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    for name in recipes.names():
        if name.startswith("qwen3_moe"):
            assert recipes.load(name, fields) == recipes.load(name, config)


def test_statements_follow_the_configuration():
    fields = {"num_attention_heads": 8, "num_hidden_layers": 4}
    plain = recipes.load("llama_megatron", fields)
    assert "num_heads=8, num_kv_heads=8" in plain
    assert "lm_head" in plain
    assert "bias" not in plain
    full = recipes.load(
        "llama_megatron", {**fields, "tie_word_embeddings": True, "attention_bias": True}
    )
    assert "lm_head" not in full
    assert "linear_qkv.bias" in full
    sparse = {**fields, "decoder_sparse_step": 2, "mlp_only_layers": [3], "num_experts": 2}
    moe = recipes.load("qwen3_moe_megatron", sparse)
    found = [n for n in range(4) if f"decoder.layers.{n}.pre_mlp_layernorm.weight" in moe]
    assert found == [1]


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("llama", {}, "no recipe 'llama'"),
        ("../recipes/llama_fused", {}, "no recipe"),
        ("llama_fused", {}, "must have num_attention_heads"),
        ("llama_fused", {"num_attention_heads": "4]"}, "must be a positive number, not '4]'"),
        ("llama_fused", {"num_attention_heads": True}, "must be a positive number, not True"),
        ("llama_fused", {"num_attention_heads": 4, "num_key_value_heads": 3}, "multiple"),
        (
            "deepseek_v3_fused",
            {"attention_bias": True, "num_hidden_layers": 1},
            "attention_bias are not served",
        ),
    ],
)
def test_what_a_recipe_does_not_take(name, fields, message):
    with pytest.raises(FlexckptError, match=message) as caught:
        recipes.load(name, fields)
    assert caught.value.code == "ARG101"


def test_every_recipe_says_what_it_does():
    for name in recipes.names():
        assert "Hugging Face" in recipes.describe(name)
        assert "\n#" not in recipes.describe(name)
