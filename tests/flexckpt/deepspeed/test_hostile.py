# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""ZeRO checkpoints with files that are missing, damaged, contradictory or hostile."""

import contextlib
import copy
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed import READER_ZERO
from flexckpt.io.deepspeed_tp import Rules
from tests.flexckpt.deepspeed.tp_files import INFO, write_checkpoint

MODEL = "mp_rank_00_model_states.pt"
OPTIMIZER = "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("deepspeed")
    root = tmp_path_factory.mktemp("sound")
    for stage in (1, 3):
        write_checkpoint(root / f"zero{stage}", stage)
    return root


def _edit(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    states = torch.load(file, weights_only=False)
    edit(states)
    torch.save(states, file)


def _optimizer(states: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = states["optimizer_state_dict"]
    return found


def _cut_master(states: dict[str, Any]) -> None:
    groups = _optimizer(states)["single_partition_of_fp32_groups"]
    groups[0] = groups[0][:-3].clone()


def _square_moment(states: dict[str, Any]) -> None:
    state = _optimizer(states)["base_optimizer_state"]["state"][0]
    state["exp_avg"] = state["exp_avg"][:4].view(2, 2)


# What is done to a sound ZeRO-1 checkpoint, the code of the error, and what it names.
DAMAGE: list[tuple[str, Callable[[Path], object], str, str]] = [
    (
        "no optimizer file of a rank",
        lambda p: (p / OPTIMIZER).unlink(),
        "CKP102",
        "dp rank 1, mp rank 1",
    ),
    (
        "no optimizer files",
        lambda p: [f.unlink() for f in p.glob("*optim_states.pt")],
        "CKP102",
        "optim_states",
    ),
    ("no model file", lambda p: (p / MODEL).unlink(), "CKP102", MODEL),
    (
        "no model file of a rank",
        lambda p: (p / "mp_rank_01_model_states.pt").unlink(),
        "CKP202",
        "mp rank 1",
    ),
    (
        "a rank too many",
        lambda p: shutil.copy(p / OPTIMIZER, p / OPTIMIZER.replace("rank_1_mp", "rank_7_mp")),
        "CKP202",
        "dp rank 7",
    ),
    (
        "one rank twice",
        lambda p: shutil.copy(p / OPTIMIZER, p / OPTIMIZER.replace("bf16_", "")),
        "CKP202",
        "of one rank",
    ),
    (
        "a million ranks",
        lambda p: shutil.copy(p / MODEL, p / "mp_rank_999999999_model_states.pt"),
        "CKP102",
        "only a few files",
    ),
    (
        "a truncated file",
        lambda p: (p / OPTIMIZER).write_bytes((p / OPTIMIZER).read_bytes()[:-900]),
        "CKP103",
        OPTIMIZER,
    ),
    ("an empty file", lambda p: (p / MODEL).write_bytes(b""), "CKP103", MODEL),
    (
        "a short partition",
        lambda p: _edit(p / OPTIMIZER, _cut_master),
        "CKP103",
        "'master' of group 0",
    ),
    ("a moment that is not flat", lambda p: _edit(p / OPTIMIZER, _square_moment), "CKP103", "flat"),
    (
        "another number of groups",
        lambda p: [
            _edit(f, lambda s: s["param_shapes"].append({"more": (2,)})) for f in p.glob("mp_rank*")
        ],
        "CKP202",
        "1 groups",
    ),
    (
        "a parameter that only one rank has",
        lambda p: _edit(p / MODEL, lambda s: s["param_shapes"][0].update(more=(2,))),
        "CKP202",
        "'more'",
    ),
    (
        "negative sizes",
        lambda p: _edit(p / MODEL, lambda s: s["param_shapes"][0].update({"norm.weight": (-5,)})),
        "CKP103",
        "norm.weight",
    ),
    (
        "shapes that are no shapes",
        lambda p: _edit(p / MODEL, lambda s: s.update(param_shapes="none")),
        "CKP103",
        "param_shapes",
    ),
    (
        "experts",
        lambda p: shutil.copy(p / MODEL, p / "layer_0_expert_1_mp_rank_00_model_states.pt"),
        "CKP109",
        "experts",
    ),
    (
        "groups over other ranks",
        lambda p: _edit(p / OPTIMIZER, lambda s: _optimizer(s).update(partition_count=[5])),
        "CKP109",
        r"\[2, 5\]",
    ),
    (
        "no partition count",
        lambda p: _edit(p / OPTIMIZER, lambda s: _optimizer(s).pop("partition_count")),
        "CKP103",
        "partition_count",
    ),
    ("a list", lambda p: torch.save([1], p / MODEL), "CKP103", "list"),
    ("not a model", lambda p: torch.save({"a": 1}, p / MODEL), "CKP103", "states of a model"),
    (
        "no rules of tensor parallelism",
        lambda p: _edit(p / MODEL, lambda s: s.pop("universal_checkpoint_info")),
        "CKP109",
        "universal_checkpoint_info",
    ),
    (
        "paddings of other parameters",
        lambda p: [
            _edit(f, lambda s: _optimizer(s).update(param_alignment_paddings=[[0]]))
            for f in p.glob("*optim_states.pt")
        ],
        "CKP202",
        "paddings",
    ),
    (
        "stages that do not divide",
        lambda p: _edit(
            p / MODEL, lambda s: s.update(checkpoint_parallel_dimensions={"pp_degree": 3})
        ),
        "CKP202",
        "pipeline stages",
    ),
]


@pytest.mark.parametrize(
    ("damage", "code", "names"), [d[1:] for d in DAMAGE], ids=[d[0] for d in DAMAGE]
)
def test_damage(
    damage: Callable[[Path], object], code: str, names: str, sound: Path, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    shutil.copytree(sound / "zero1", path)
    READER_ZERO.read_index(path)
    damage(path)
    with pytest.raises(CheckpointError, match=names) as caught:
        READER_ZERO.read_index(path)
    assert caught.value.code == code


def test_zero3_without_the_file_of_a_rank(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound / "zero3", tmp_path / "c")
    (tmp_path / "c" / "zero_pp_rank_1_mp_rank_00_model_states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"CKP102.*model states of dp rank 1, mp rank 0"):
        READER_ZERO.read_index(tmp_path / "c")


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("", "CKP103"),
        ("../c", "CKP106"),
        ("/etc", "CKP106"),
        ("gone", "CKP102"),
        ("a\0b", "CKP103"),
    ],
)
def test_latest(tag: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "latest").write_text(tag)
    assert READER_ZERO.recognizes(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        READER_ZERO.read_index(tmp_path)
    assert caught.value.code == code


def test_code_in_a_file_does_not_run(sound: Path, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    shutil.copytree(sound / "zero1", tmp_path / "c")
    _edit(tmp_path / "c" / MODEL, lambda s: s.update(trap=Trap()))
    index = READER_ZERO.read_index(tmp_path / "c")  # the trap is kept out, as objects are
    assert not (tmp_path / "ran").exists()
    assert "trap" not in index.extra["client_state"]


@pytest.mark.parametrize(
    "pattern", [r"(a+)+$", r".*.*.*.*.*x", "(", "x" * 2000, 5], ids=lambda p: str(p)[:10]
)
def test_patterns_that_could_hang(pattern: Any) -> None:
    with pytest.raises(CheckpointError, match="CKP103"):
        Rules({"tp_replicated_parameter_patterns": [pattern]})


@pytest.mark.parametrize(
    ("change", "shapes", "code"),
    [
        ({"parameter_to_average_patterns": ["w"]}, [(2,), (2,)], "CKP109"),
        ({"autotp_unsupported_parameter_patterns": {"w": "why"}}, [(2,), (2,)], "CKP109"),
        ({"tp_replicated_parameter_patterns": ["w"]}, [(2,), (3,)], "CKP202"),
        ({"parameter_with_row_parallelism_patterns": ["w"]}, [(2,), (2,)], "CKP202"),
        ({}, [(2, 3), (2, 4)], "CKP202"),
        ({}, [(), ()], "CKP202"),
    ],
)
def test_rules_that_do_not_fit(
    change: dict[str, Any], shapes: list[tuple[int, ...]], code: str
) -> None:
    with pytest.raises(CheckpointError, match="'w'") as caught:
        Rules(change).place("w", shapes)
    assert caught.value.code == code


def test_scaled_parts() -> None:
    """A bias that was divided by the number of ranks cannot be copied."""
    piece = {"shape": [2], "source": [0, [1]], "dest": [0, [1]], "locations": [0], "scale": 0.5}
    affine = {"logical_shape": [2], "ranks": {0: {"shard_shape": [2], "pieces": [piece]}}}
    rules = Rules({"affine_map": {"version": 1, "params": {"^w$": affine}}})
    with pytest.raises(CheckpointError, match="CKP109"):
        rules.place("w", [(2,), (2,)])


IN_MODEL_STATES = [
    "module",
    "buffer_names",
    "param_shapes",
    "shared_params",
    "checkpoint_parallel_dimensions",
    "frozen_param_shapes",
    "frozen_param_fragments",
    "universal_checkpoint_info",
]
IN_OPTIMIZER_STATES = [
    "base_optimizer_state",
    "single_partition_of_fp32_groups",
    "partition_count",
    "loss_scaler",
    "param_alignment_paddings",
    "ds_zero_partition_groups",
    "fp32_flat_groups",
]
junk = st.recursive(
    st.none() | st.integers(-3, 9) | st.text(max_size=3) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


_fuzz = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@_fuzz
@given(field=st.sampled_from(IN_MODEL_STATES), value=junk, stage=st.sampled_from([1, 3]))
def test_junk_in_model_states(
    field: str, value: Any, stage: int, sound: Path, tmp_path: Path
) -> None:
    path = tmp_path / "c"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound / f"zero{stage}", path)
    name = MODEL if stage == 1 else f"zero_pp_rank_0_{MODEL}"
    _edit(path / name, lambda s: s.update({field: value}))
    _reads_or_refuses(path)


@_fuzz
@given(field=st.sampled_from(IN_OPTIMIZER_STATES), value=junk)
def test_junk_in_optimizer_states(field: str, value: Any, sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "c"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(sound / "zero1", path)
    name = OPTIMIZER.replace("rank_1_mp_rank_01", "rank_0_mp_rank_00")
    _edit(path / name, lambda s: _optimizer(s).update({field: value}))
    _reads_or_refuses(path)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(INFO)), junk)
def test_junk_in_rules(field: str, value: Any) -> None:
    info = {**copy.deepcopy(INFO), field: value}
    with contextlib.suppress(CheckpointError):
        Rules(info).place("qkv.weight", [(6, 3), (6, 3)])


def _reads_or_refuses(path: Path) -> None:
    with contextlib.suppress(CheckpointError):
        READER_ZERO.read_index(path)
