# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Live models of transformers are filled from any layout, and saved for from_pretrained."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import flexckpt
from flexckpt import recipes
from flexckpt.errors import FlexckptError
from flexckpt.interop.transformers import load_pretrained, save_pretrained, tensors_of
from tests.flexckpt.processes import run_ranks
from tests.flexckpt.recipes.models import (
    CONFIGS,
    files_of,
    logits,
    make_model,
    read_back,
    transformers,
)


def empty_model(name: str, dtype: torch.dtype = torch.float32):
    """A model of the same kind whose weights are all wrong."""
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name][1](), dtype=dtype)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(7)
    return model.eval()


def code_of(*args, **options) -> str:
    with pytest.raises(FlexckptError) as caught:
        load_pretrained(*args, **options)
    return caught.value.code


@pytest.mark.parametrize("name", CONFIGS)
def test_a_live_model_is_filled_from_files_of_transformers(tmp_path, name):
    make_model(name).save_pretrained(tmp_path, max_shard_size="4KB")
    model = empty_model(name)
    report = load_pretrained(model, tmp_path)
    assert not report.missing
    assert torch.equal(logits(model), logits(make_model(name)))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_live_model_is_saved(tmp_path, name):
    folder = tmp_path / "out"
    save_pretrained(make_model(name), folder, shard_size="4KB")
    assert torch.equal(logits(read_back(folder)), logits(make_model(name)))
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == files_of(name).keys()
    for shard in set(index["weight_map"].values()):
        for key, tensor in load_file(folder / shard).items():
            assert torch.equal(tensor, files_of(name)[key])
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [type(make_model(name)).__name__]
    assert (folder / "generation_config.json").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["llama with biases, tied", "qwen3_moe", "deepseek_v3"])
def test_through_a_checkpoint_with_names_of_megatron(tmp_path, name):
    original = make_model(name)
    program = recipes.load(f"{CONFIGS[name][0]}_megatron", original.config)
    original.save_pretrained(tmp_path / "hf")
    flexckpt.convert(tmp_path / "hf", tmp_path / "megatron", aoa=program, to="flexckpt")
    index = flexckpt.read_index(tmp_path / "megatron")
    assert ("decoder.final_layernorm.weight", "weight") in index.entries
    save_pretrained(
        tmp_path / "megatron", tmp_path / "back", config=original.config, aoa=program, reverse=True
    )
    assert torch.equal(logits(read_back(tmp_path / "back")), logits(original))


def test_tensors_are_saved_with_the_side_files_of_a_folder(tmp_path):
    original = make_model("llama")
    (tmp_path / "old").mkdir()
    original.config.save_pretrained(tmp_path / "old")
    for name in ("tokenizer.json", "merges.txt", "model.safetensors", "notes.md"):
        (tmp_path / "old" / name).write_text(name)
    save_pretrained(files_of("llama"), tmp_path / "new", config=tmp_path / "old")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert torch.equal(logits(read_back(tmp_path / "new")), logits(original))


def test_what_was_there_stays_if_the_configuration_is_missing(tmp_path):
    folder = tmp_path / "out"
    save_pretrained(make_model("llama"), folder)
    before = {p: p.read_bytes() for p in folder.iterdir()}
    for config, code in ((None, "ARG101"), (tmp_path, "CKP102")):
        with pytest.raises(FlexckptError) as caught:
            save_pretrained({"w": torch.ones(2)}, folder, config=config)
        assert caught.value.code == code
    assert {p: p.read_bytes() for p in folder.iterdir()} == before
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    save_pretrained({"w": torch.ones(2)}, folder, config=folder)
    assert load_file(folder / "model.safetensors").keys() == {"w"}


class TestStrict:
    def test_tied_and_ignored_names_of_files_are_not_unexpected(self, tmp_path):
        tensors = dict(files_of("gpt2"))
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
        tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4)
        save_file(tensors, tmp_path / "model.safetensors")
        model = empty_model("gpt2")
        load_pretrained(model, tmp_path)
        assert torch.equal(logits(model), logits(make_model("gpt2")))

    def test_files_of_the_model_without_its_head(self, tmp_path):
        make_model("gpt2").transformer.save_pretrained(tmp_path)
        model = empty_model("gpt2")
        load_pretrained(model, tmp_path)
        assert torch.equal(logits(model), logits(make_model("gpt2")))

    def test_other_names_are(self, tmp_path):
        tensors = {**files_of("gpt2"), "another": torch.ones(1)}
        save_file(tensors, tmp_path / "model.safetensors")
        assert code_of(empty_model("gpt2"), tmp_path) == "AOA308"
        load_pretrained(empty_model("gpt2"), tmp_path, strict={"unexpected": "ignore"})

    def test_missing_names(self, tmp_path):
        tensors = {k: v for k, v in files_of("llama").items() if k != "model.norm.weight"}
        save_file(tensors, tmp_path / "model.safetensors")
        model = empty_model("llama")
        assert code_of(model, tmp_path) == "AOA306"
        assert all((p == 7).all() for p in model.parameters())

    def test_other_dtypes_want_a_cast(self, tmp_path):
        save_file(files_of("llama"), tmp_path / "model.safetensors")
        model = empty_model("llama", torch.bfloat16)
        assert code_of(model, tmp_path) in ("AOA303", "LAY103")
        load_pretrained(model, tmp_path, cast=True)
        wanted = files_of("llama")["lm_head.weight"].bfloat16()
        assert torch.equal(model.lm_head.weight, wanted)

    def test_nothing_to_reverse(self, tmp_path):
        save_file(files_of("llama"), tmp_path / "model.safetensors")
        assert code_of(empty_model("llama"), tmp_path, reverse=True) == "ARG101"
        with pytest.raises(FlexckptError, match="ARG101"):
            save_pretrained(make_model("llama"), tmp_path / "out", reverse=True)

    def test_a_model_without_memory(self, tmp_path):
        save_file(files_of("llama"), tmp_path / "model.safetensors")
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(CONFIGS["llama"][1]())
        assert code_of(model, tmp_path) == "INT102"


def test_the_dtype_of_the_weights_is_that_of_the_configuration(tmp_path):
    model = empty_model("llama", torch.bfloat16)
    save_pretrained(model, tmp_path / "out")
    assert model.config is not None
    assert read_back(tmp_path / "out").dtype == torch.bfloat16


def test_tied_tensors_are_taken_once():
    tensors, tied = tensors_of(make_model("gpt2"))
    assert tied == {"lm_head.weight": "transformer.wte.weight"}
    assert "lm_head.weight" not in tensors
    assert (
        tensors["transformer.wte.weight"].data_ptr() == make_model("gpt2").lm_head.weight.data_ptr()
    )


def fill_sharded(folder: str, out: str, name: str) -> dict[str, Tensor]:
    """On each rank: shard a model with FSDP2, fill it, save it; its parameters put together."""
    from torch.distributed import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    model = empty_model(name)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    load_pretrained(model, folder)
    save_pretrained(model, out)
    return {n: p.full_tensor() for n, p in model.state_dict().items() if hasattr(p, "full_tensor")}


@pytest.mark.dist
@pytest.mark.parametrize("name", ["llama with biases, tied", "qwen3_moe"])
def test_a_model_sharded_with_fsdp2(tmp_path, name):
    original = make_model(name)
    original.save_pretrained(tmp_path / "hf")
    found = run_ranks(fill_sharded, 2, str(tmp_path / "hf"), str(tmp_path / "out"), name)
    state = original.state_dict()
    for tensors in found:
        assert tensors.keys() >= {n for n, _ in original.named_parameters()}
        assert all(torch.equal(t, state[n]) for n, t in tensors.items())
    assert torch.equal(logits(read_back(tmp_path / "out")), logits(original))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == [type(original).__name__]
