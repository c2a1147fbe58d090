# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""ZeRO checkpoints that DeepSpeed wrote, against its own tools and the engines that wrote them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from flexckpt.io.deepspeed import READER_UNIVERSAL, READER_ZERO
from tests.flexckpt.deepspeed.gather import gather, gather_shards
from tests.flexckpt.deepspeed.jobs import RUNS, SAVED
from tests.flexckpt.deepspeed.made import made
from tests.flexckpt.deepspeed.tp_files import PARAMETERS, STATES, whole

pytestmark = pytest.mark.dist


@pytest.mark.parametrize("name", RUNS)
def test_it_holds_what_the_engine_held(name: str) -> None:
    index = READER_ZERO.read_index(made().root / name)
    held = gather_shards(made().shards[name])
    stored = {
        (key, state): tensor
        for state in dict.fromkeys(s for _, s in index.entries)
        for key, tensor in gather(index, state).items()
    }
    if RUNS[name].stage == 3 and RUNS[name].dtype != "fp32":  # whose 16-bit weights are not stored
        held = {k: t for k, t in held.items() if k[1] != "weight" or (k[0], "master") not in held}
    assert stored.keys() == held.keys()
    for which, tensor in held.items():
        assert stored[which].dtype == tensor.dtype, which
        assert torch.equal(stored[which], tensor), which


@pytest.mark.parametrize("name", [n for n in RUNS if n != "bf16_optimizer"])
def test_it_agrees_with_zero_to_fp32(name: str) -> None:
    index = READER_ZERO.read_index(made().root / name)
    expected = torch.load(made().root / f"{name}.fp32")
    tensors = {**gather(index, "weight"), **gather(index, "master")}
    left_out = {"frozen.weight", "frozen.bias"} if RUNS[name].stage == 1 else set()
    assert {index.aliases.get(key, key) for key in expected} | left_out == set(tensors)
    for key, tensor in expected.items():
        assert torch.equal(tensors[index.aliases.get(key, key)].to(tensor.dtype), tensor), key


@pytest.mark.parametrize("name", ["zero1_bf16", "zero3"])
def test_names_settings_and_counters(name: str) -> None:
    index = READER_ZERO.read_index(made().root / name)
    assert index.layout == "deepspeed"
    assert index.aliases == {"head.weight": "embed.weight"}
    assert index.extra["client_state"] == {"note": "x", "seen": [1, 2]}
    assert index.extra["global_steps"] == SAVED
    first, second = index.extra["param_groups"]
    assert (first["weight_decay"], second["weight_decay"], second["lr"]) == (0.1, 0.0, 2e-2)
    assert second["params"] == ["norm.weight", "norm.bias"]
    assert {t.item() for t in gather(index, "step").values()} == {SAVED}


@pytest.mark.parametrize("name", ["zero2", "zero3_bf16"])
def test_the_tag_may_be_named(name: str) -> None:
    root = made().root / name
    whole, direct = (READER_ZERO.read_index(p) for p in (root, root / "step"))
    assert whole.entries == direct.entries
    assert whole.files == direct.files
    assert READER_ZERO.recognizes(root)
    assert READER_ZERO.recognizes(root / "step")
    assert not READER_UNIVERSAL.recognizes(root)


def test_stages_of_a_pipeline(tmp_path: Path) -> None:
    """Each stage has other parameters; their weights lie in the partitions only."""
    wholes = {name: torch.randn(2, 3) for name in ("0.w", "1.w")}
    for stage, (name, tensor) in enumerate(wholes.items()):
        states = {
            "module": None,
            "buffer_names": [],
            "param_shapes": [{name: (2, 3)}],
            "checkpoint_parallel_dimensions": {"pp_degree": 2, "tp_degree": 1},
        }
        optimizer = {
            "single_partition_of_fp32_groups": [tensor.flatten()],
            "base_optimizer_state": {"state": {0: {"step": 5, "exp_avg": 2 * tensor.flatten()}}},
            "partition_count": [1],
        }
        file = f"mp_rank_0{stage}_model_states.pt"
        torch.save(states, tmp_path / file)
        file = f"zero_pp_rank_0_mp_rank_0{stage}_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer}, tmp_path / file)
    index = READER_ZERO.read_index(tmp_path)
    weights, moments = gather(index, "weight"), gather(index, "exp_avg")
    assert weights.keys() == moments.keys() == wholes.keys()
    for name, tensor in wholes.items():
        assert torch.equal(weights[name], tensor)
        assert torch.equal(moments[name], 2 * tensor)
    assert index.extra["optimizer_numbers"] == {"step": 5}


@pytest.mark.parametrize("stage", [1, 3])
def test_tensor_parallel_ranks(stage: int) -> None:
    """DeepSpeed's converter puts the same parts together, by the same rules."""
    index = READER_ZERO.read_index(made().root / f"tp{stage}" / "step")
    zero = made().root / f"tp{stage}_universal" / "step" / "zero"
    for state in STATES:
        found = gather(index, state)
        assert found.keys() == PARAMETERS.keys()
        for key, tensor in found.items():
            kept = torch.load(
                zero / key / f"{'fp32' if state == 'master' else state}.pt", weights_only=False
            )
            assert torch.equal(kept["param"], tensor), (key, state)
            assert torch.equal(tensor, whole(key, state)[: len(tensor)])
    weights = gather(index, "weight")
    assert torch.equal(weights.pop("table"), torch.arange(3))
    assert len(weights) == (len(PARAMETERS) if stage == 1 else 0)
    for key, tensor in weights.items():
        assert torch.equal(tensor, whole(key, "master")[: len(tensor)].bfloat16())


def test_an_engine_without_zero(tmp_path: Path) -> None:
    """Its weights are whole; its optimizer numbers the parameters, and is not read."""
    states: dict[str, Any] = {
        "module": {"w": torch.randn(3, 4), "b": torch.randn(3).bfloat16()},
        "buffer_names": [],
        "optimizer": {"state": {}, "param_groups": []},
        "param_shapes": None,
        "global_steps": 4,
    }
    torch.save(states, tmp_path / "mp_rank_00_model_states.pt")
    index = READER_ZERO.read_index(tmp_path)
    found = gather(index, "weight")
    assert found.keys() == {"w", "b"}
    for key, tensor in found.items():
        assert torch.equal(tensor, states["module"][key])
    assert index.extra["global_steps"] == 4
