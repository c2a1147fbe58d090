# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A ZeRO checkpoint of two tensor-parallel by two data-parallel ranks, made without an engine.

DeepSpeed's own converter reads it, too, and is what the reader is compared with.
"""

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

TP, DP = 2, 2
VOCABULARY = 9  # padded to 10, so that two ranks can share it

# Whole parameters: shape, axis that is cut (None for replicas), widths of sub-parameters on a rank.
PARAMETERS: dict[str, tuple[tuple[int, ...], int | None, list[int]]] = {
    "embed.weight": ((10, 3), 0, []),
    "up.weight": ((6, 5), 0, []),
    "down.weight": ((5, 6), 1, []),
    "norm.weight": ((5,), None, []),
    "glu.weight": ((8, 3), 0, [2, 2]),
    "qkv.weight": ((12, 3), 0, [4, 1, 1]),
    "mixed.weight": ((3, 8), 1, [3, 1]),
}
INFO = {
    "universal_checkpoint_version": 0.2,
    "vocabulary_parameter_patterns": [r"embed\.weight"],
    "original_vocab_size": VOCABULARY,
    "tp_replicated_parameter_patterns": [r"norm\.weight"],
    "parameter_with_row_parallelism_patterns": [r"down\.weight"],
    "parameter_with_2_sub_params_cat_dim_0": [r"glu\.weight"],
    "parameter_with_sub_params": [
        {"patterns": [r"qkv\.weight"], "shape": ((8, 2, 2), 3), "partition_dim": 0},
        {"patterns": [r"mixed\.weight"], "shape": (3, (6, 2)), "partition_dim": 1},
    ],
}
STATES = ("master", "exp_avg", "exp_avg_sq")


def whole(name: str, state: str) -> torch.Tensor:
    """The whole parameter in a state, with the padding of the vocabulary."""
    seed = sum(map(ord, name + state))
    shape = PARAMETERS[name][0]
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def local(name: str, tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """What a tensor-parallel rank has of a whole parameter."""
    _, axis, widths = PARAMETERS[name]
    if axis is None:
        return tensor
    if not widths:
        return tensor.chunk(TP, axis)[rank]
    parts = tensor.split([w * TP for w in widths], axis)
    return torch.cat([part.chunk(TP, axis)[rank] for part in parts], axis)


def write_checkpoint(folder: Path, stage: int, info: dict[str, Any] | None = INFO) -> None:
    """The files of a tag folder."""
    folder.mkdir(parents=True)
    for rank in range(TP):
        states = {s: {n: local(n, whole(n, s), rank) for n in PARAMETERS} for s in STATES}
        model = _model_states(states["master"], stage, info)
        for dp in range(DP if stage == 3 else 1):
            prefix = f"zero_pp_rank_{dp}_" if stage == 3 else ""
            torch.save(model, folder / f"{prefix}mp_rank_{rank:02}_model_states.pt")
        for dp in range(DP):
            flat = {s: (_part3 if stage == 3 else _part1)(states[s], dp) for s in STATES}
            optimizer = _optimizer3(flat) if stage == 3 else _optimizer1(flat, states, dp)
            file = folder / f"bf16_zero_pp_rank_{dp}_mp_rank_{rank:02}_optim_states.pt"
            torch.save({"optimizer_state_dict": optimizer, "ds_version": "0.19.8"}, file)


def _model_states(
    weights: dict[str, torch.Tensor], stage: int, info: dict[str, Any] | None
) -> dict[str, Any]:
    shapes = OrderedDict((n, t.shape) for n, t in weights.items())
    module = {
        n: torch.empty(0, dtype=torch.bfloat16) if stage == 3 else t.bfloat16().contiguous()
        for n, t in weights.items()
    }
    states = {
        "module": {**module, "table": torch.arange(3)},
        "buffer_names": ["table"],
        "param_shapes": [shapes],
        "frozen_param_shapes": None,
        "shared_params": {},
        "ds_config": {},
        "ds_version": "0.19.8",
        "dp_world_size": DP,
        "mp_world_size": TP,
        "iteration": 7,
        "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": TP},
    }
    return states if info is None else {**states, "universal_checkpoint_info": info}


def _part1(tensors: dict[str, torch.Tensor], dp: int) -> torch.Tensor:
    """The partition of ZeRO-1 with its padding."""
    flat = torch.cat([t.flatten() for t in tensors.values()])
    size = -(-flat.numel() // (2 * DP)) * 2
    flat = torch.cat([flat, torch.zeros(size * DP - flat.numel())])
    return flat[dp * size : (dp + 1) * size].clone()


def _part3(tensors: dict[str, torch.Tensor], dp: int) -> torch.Tensor:
    parts = []
    for tensor in tensors.values():
        size = -(-tensor.numel() // DP)
        padded = torch.cat([tensor.flatten(), torch.zeros(size * DP - tensor.numel())])
        parts.append(padded[dp * size : (dp + 1) * size])
    return torch.cat(parts)


def _optimizer1(
    flat: dict[str, torch.Tensor], states: dict[str, dict[str, torch.Tensor]], dp: int
) -> dict[str, Any]:
    from deepspeed.utils.tensor_fragment import fragment_address

    size, first, slices = flat["master"].numel(), 0, OrderedDict()
    for name, tensor in states["master"].items():
        low, high = max(first, dp * size), min(first + tensor.numel(), (dp + 1) * size)
        if low < high:
            slices[name] = fragment_address(numel=high - low, start=low - dp * size)
        first += tensor.numel()
    padding = size * DP - first if dp == DP - 1 else 0
    return {
        "zero_stage": 1,
        "base_optimizer_state": _state_dict(flat),
        "single_partition_of_fp32_groups": [flat["master"][: size - padding]],
        "group_paddings": [padding],
        "partition_count": [DP],
        "param_slice_mappings": [slices],
        "ds_version": "0.19.8",
    }


def _optimizer3(flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    return {
        "zero_stage": 3,
        "partition_count": DP,
        "optimizer_state_dict": _state_dict(flat),
        "fp32_flat_groups": [flat["master"]],
    }


def _state_dict(flat: dict[str, torch.Tensor]) -> dict[str, Any]:
    moments = {s: flat[s] for s in STATES if s != "master"}
    return {
        "state": {0: {"step": torch.tensor(7.0), **moments}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
    }
