# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The command line: what each command prints, writes and returns."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import flexckpt
from flexckpt.cli.main import main
from tests.flexckpt.cli.checkpoints import AOA, mapped, state, write_folder
from tests.house.project import ROOT


@pytest.fixture
def folder(tmp_path) -> Path:
    write_folder(tmp_path / "hf", state())
    (tmp_path / "map.aoa").write_text(AOA)
    return tmp_path


def run(*words: object) -> int:
    return main([str(word) for word in words])


def tensors_in(path: Path) -> dict[str, torch.Tensor]:
    out = {}
    for file in sorted(path.glob("*.safetensors")):
        out |= load_file(file)
    return out


def assert_equal(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> None:
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


def test_ls_shows_a_row_per_pattern(folder, capsys):
    assert run("ls", folder / "hf") == 0
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if line.startswith("layers.{0..2}.attn.q.weight"))
    assert row.split() == [
        "layers.{0..2}.attn.q.weight", "3", "weight", "[8,", "6]", "bfloat16", "1", "288", "B"
    ]  # fmt: skip
    assert "layout safetensors; 17 keys" in out
    assert "2 files" in out


def test_ls_for_machines_has_every_tensor(folder, capsys):
    assert run("ls", folder / "hf", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "safetensors"
    shapes = {row["key"]: (tuple(row["shape"]), row["dtype"]) for row in found["tensors"]}
    assert shapes == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        for name, tensor in state().items()
    }


def test_ls_shows_states_together(tmp_path, capsys):
    weight = {"w": torch.zeros(4, 4), "w@exp_avg": torch.zeros(4, 4), "w@step": torch.tensor(3.0)}
    flexckpt.save(weight, tmp_path / "saved").wait()
    assert run("ls", tmp_path / "saved") == 0
    out = capsys.readouterr().out
    assert "weight, exp_avg" in out
    assert "layout flexckpt; 1 keys, 3 with their states" in out


def test_explain_prints_the_plan(folder, capsys):
    assert run("explain", folder / "hf", "--aoa", folder / "map.aoa") == 0
    out = capsys.readouterr().out
    assert "layers.{0..2}.attn.qkv.weight  [16, 6] bfloat16  (3 tensors)\n" in out
    assert "    <- layers.{0..2}.attn.k.weight  [4, 6] bfloat16\n" in out
    assert "7 rewritten, 3 unchanged, 0 missing, 0 unexpected, 1 dropped, 0 kept" in out


def test_explain_for_machines(folder, capsys):
    assert run("explain", folder / "hf", "--aoa", folder / "map.aoa", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["outputs"]}
    assert rows.keys() == mapped(state()).keys()
    assert rows["layers.1.attn.qkv.weight"]["sources"] == [
        f"layers.1.attn.{one}.weight" for one in "qkv"
    ]
    assert found["dropped"] == ["rotary.inv_freq"]


def test_convert_writes_what_the_mapping_says(folder):
    assert run("convert", folder / "hf", folder / "out", "--aoa", folder / "map.aoa") == 0
    assert_equal(tensors_in(folder / "out"), mapped(state()))


def test_convert_back_with_the_inverse(folder):
    aoa = folder / "map.aoa"
    aoa.write_text("".join(line for line in AOA.splitlines(True) if "rotary" not in line))
    whole = {name: tensor for name, tensor in state().items() if "rotary" not in name}
    # What the cast rounded away does not come back.
    whole["head.weight"] = whole["head.weight"].bfloat16().float()
    write_folder(folder / "rounded", whole)
    assert run("convert", folder / "rounded", folder / "there", "--aoa", aoa) == 0
    assert run("convert", folder / "there", folder / "back", "--aoa", aoa, "--reverse") == 0
    assert_equal(tensors_in(folder / "back"), whole)


def test_inverse_of_unequal_parts_needs_to_know_them(folder, capsys):
    parts = {"a": torch.randn(5, 3), "b": torch.randn(1, 3)}
    write_folder(folder / "parts", parts)
    aoa = folder / "join.aoa"
    aoa.write_text("a, b -> c, axis=0")
    back = ("convert", folder / "joined", folder / "back", "--aoa", aoa, "--reverse")
    assert run("convert", folder / "parts", folder / "joined", "--aoa", aoa) == 0
    assert run(*back) == 0
    assert capsys.readouterr().err.startswith("warning: the inverse of ")
    assert run(*back, "--like", folder / "parts") == 0
    assert capsys.readouterr().err == ""
    assert_equal(tensors_in(folder / "back"), parts)


@pytest.mark.parametrize("layout", ["flexckpt", "dcp"])
def test_merge_undoes_another_layout(folder, layout):
    assert run("convert", folder / "hf", folder / "other", "--to", layout, "--quiet") == 0
    assert run("merge", folder / "other", folder / "out", "--shard-size", "400B") == 0
    assert_equal(tensors_in(folder / "out"), state())
    files = list((folder / "out").glob("*.safetensors"))
    assert len(files) > 2


def test_convert_is_silent_where_nobody_looks(folder, capsys):
    assert run("convert", folder / "hf", folder / "out") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ""


def test_verify_finds_one_wrong_bit(folder, capsys):
    assert run("convert", folder / "hf", folder / "ours", "--to", "flexckpt") == 0
    assert run("verify", folder / "ours") == 0
    total = sum(tensor.nbytes for tensor in state().values())
    shown = f"{total} B" if total < 1000 else f"{total / 1024:.1f} KiB"
    assert f"checksums of {shown} match" in capsys.readouterr().out
    (file,) = (folder / "ours").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert run("verify", folder / "ours") == 1
    assert "[CKP107]" in capsys.readouterr().err


def test_verify_says_what_it_could_not_check(folder, capsys):
    assert run("verify", folder / "hf") == 0
    assert "no checksums" in capsys.readouterr().out


def test_verify_finds_a_missing_file(folder, capsys):
    assert run("convert", folder / "hf", folder / "ours", "--to", "flexckpt") == 0
    for file in (folder / "ours").glob("*.safetensors"):
        file.unlink()
    assert run("verify", folder / "ours") == 1
    assert "[CKP102]" in capsys.readouterr().err


BAD = {
    "no checkpoint": ("ls", "{folder}/nowhere"),
    "no mapping": ("explain", "{folder}/hf", "--aoa", "{folder}/none.aoa"),
    "mapping is not text": ("explain", "{folder}/hf", "--aoa", "{folder}/binary.aoa"),
    "no recipe": ("explain", "{folder}/hf", "--recipe", "none", "--config", "{folder}/good.json"),
    "no config": ("explain", "{folder}/hf", "--recipe", "llama_fused"),
    "config is not JSON": (
        *("explain", "{folder}/hf", "--recipe", "llama_fused"),
        *("--config", "{folder}/bad.aoa"),
    ),
    "mapping does not fit": ("convert", "{folder}/hf", "{folder}/out", "--aoa", "{folder}/bad.aoa"),
    "bad size": ("convert", "{folder}/hf", "{folder}/out", "--shard-size", "lots"),
}


@pytest.mark.parametrize("name", BAD)
def test_an_error_is_one_message_and_writes_nothing(folder, capsys, name):
    (folder / "binary.aoa").write_bytes(b"a -> \xff")
    (folder / "bad.aoa").write_text("layers.0.norm.weight -> a\nnothing.here -> b\n")
    (folder / "good.json").write_text("{}")
    before = {path.name for path in folder.iterdir()}
    assert run(*(word.format(folder=folder) for word in BAD[name])) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.match(r"error: \[[A-Z]{3}\d{3}\] ", captured.err)
    assert "Traceback" not in captured.err
    assert {path.name for path in folder.iterdir()} == before


def test_recipe_takes_the_config_beside_the_source(folder):
    here = "model.layers.0."
    sizes = {"self_attn.q": 8, "self_attn.k": 4, "self_attn.v": 4, "mlp.gate": 6, "mlp.up": 6}
    state = {f"{here}{name}_proj.weight": torch.randn(n, 8) for name, n in sizes.items()}
    write_folder(folder / "llama", state)
    config = {"num_attention_heads": 4, "num_key_value_heads": 2}
    (folder / "llama" / "config.json").write_text(json.dumps(config))
    assert run("convert", folder / "llama", folder / "out", "--recipe", "llama_fused") == 0
    parts = {
        "self_attn.qkv": ("self_attn.q", "self_attn.k", "self_attn.v"),
        "mlp.gate_up": ("mlp.gate", "mlp.up"),
    }
    want = {
        f"{here}{fused}_proj.weight": torch.cat([state[f"{here}{n}_proj.weight"] for n in names])
        for fused, names in parts.items()
    }
    assert_equal(tensors_in(folder / "out"), want)


def test_recipes_are_listed(capsys):
    assert run("recipes") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == flexckpt.recipes.names()


def test_error_in_a_mapping_shows_its_place(folder, capsys):
    (folder / "bad.aoa").write_text("layers.0.norm.weight -> a\nnothing.here -> b\n")
    assert run("explain", folder / "hf", "--aoa", folder / "bad.aoa") == 1
    err = capsys.readouterr().err
    assert "line 2, column 1" in err
    assert "\n^" in err


@pytest.mark.parametrize("words", [(), ("nothing",), ("ls",), ("convert", "a", "b", "--to", "x")])
def test_wrong_usage_is_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2
    assert "usage: python -m flexckpt" in capsys.readouterr().err


def test_module_runs(folder):
    command = [sys.executable, "-m", "flexckpt", "ls", str(folder / "nowhere")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("error: [CKP101]")
