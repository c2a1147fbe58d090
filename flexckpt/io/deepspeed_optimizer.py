# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What an optimizer file of a DeepSpeed ZeRO checkpoint holds: flat tensors of a rank, by group."""

from pathlib import Path
from typing import Any, NamedTuple

from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed_files import field, plain, read_states
from flexckpt.io.restricted_pickle import Plain
from flexckpt.io.torch_file import FileTensor


class GroupPart(NamedTuple):
    """A rank's part of a group of parameters.

    Attributes:
        flat: by state, tensors of one dimension; "master" are the fp32 weights.
        scalars: by state, tensors of one element ("step").
        numbers: by state, numbers that the file has no tensor for.
    """

    flat: dict[str, FileTensor]
    scalars: dict[str, FileTensor]
    numbers: dict[str, float]


class OptimizerPart(NamedTuple):
    """An optimizer file.

    Attributes:
        path: of the file.
        by_parameter: whether each parameter is cut for itself (ZeRO-3), not a group (ZeRO-1/2).
        groups: the flat tensors. ZeRO-3 may have several for a group of the optimizer.
        counts: number of ranks of each group.
        gaps: of each group, padding behind its parameters; None if the file does not say.
        settings: ``param_groups`` as plain data; "params" are numbers of groups.
        loss_scale: the current one; None if the file has none.
        info: ``universal_checkpoint_info``, or None.
    """

    path: Path
    by_parameter: bool
    groups: list[GroupPart]
    counts: list[int]
    gaps: list[list[int]] | None
    settings: list[dict[str, Any]]
    loss_scale: float | None
    info: dict[str, Any] | None


def read_optimizer_part(path: Path) -> OptimizerPart:
    """The contents of an optimizer file, without the tensors' data.

    Raises:
        CheckpointError: CKP103 if it is damaged, CKP109 if it is of a kind that is not supported.
    """
    states = field(read_states(path), path, "optimizer_state_dict")
    by_parameter = "fp32_flat_groups" in states
    if states.get("ds_zero_partition_groups") is not None:
        raise CheckpointError(
            "CKP109", f"{path}: experts that are partitioned over their own ranks are not supported"
        )
    masters_key = "fp32_flat_groups" if by_parameter else "single_partition_of_fp32_groups"
    masters = field(states, path, masters_key, kind=list)
    base = states.get("optimizer_state_dict" if by_parameter else "base_optimizer_state")
    groups = [
        _group_part(path, number, master, _state_of(base, number))
        for number, master in enumerate(masters)
    ]
    info = states.get("universal_checkpoint_info")
    return OptimizerPart(
        path,
        by_parameter,
        groups,
        _counts(path, states.get("partition_count"), len(groups)),
        _gaps(path, states.get("param_alignment_paddings")),
        _settings(base),
        _loss_scale(states.get("loss_scaler")),
        info if isinstance(info, dict) else None,
    )


def _state_of(base: Any, number: int) -> dict[Any, Any]:
    """The optimizer's states of a group: by number, or in a list (``elastic_checkpoint``)."""
    states = base.get("state") if isinstance(base, dict) else base
    if isinstance(states, list):
        states = dict(enumerate(states))
    found = states.get(number) if isinstance(states, dict) else None
    return found if isinstance(found, dict) else {}


def _group_part(path: Path, number: int, master: Any, states: dict[Any, Any]) -> GroupPart:
    if not isinstance(master, FileTensor):
        raise CheckpointError("CKP103", f"{path}: the weights of group {number} must be a tensor")
    part = GroupPart({"master": master}, {}, {})
    for name, value in states.items():
        if isinstance(value, FileTensor):
            scalar = len(value.shape) == 0 or (value.numel == 1 and name == "step")
            (part.scalars if scalar else part.flat)[str(name)] = value
        elif isinstance(value, int | float):
            part.numbers[str(name)] = value
    for name, value in part.flat.items():
        if len(value.shape) != 1 or (value.numel > 1 and value.strides != (1,)):
            raise CheckpointError(
                "CKP103", f"{path}: {name!r} of group {number} must be flat, not {value.shape}"
            )
    return part


def _counts(path: Path, counts: Any, groups: int) -> list[int]:
    counts = [counts] * groups if type(counts) is int else counts
    fine = isinstance(counts, list | tuple) and all(type(n) is int and n > 0 for n in counts)
    if not fine or len(counts) != groups:
        raise CheckpointError(
            "CKP103",
            f"{path}: partition_count must state the ranks of {groups} groups, not {counts!r}",
        )
    return list(counts)


def _gaps(path: Path, gaps: Any) -> list[list[int]] | None:
    if gaps is None:
        return None
    for row in gaps if isinstance(gaps, list) else [None]:
        if not isinstance(row, list) or not all(type(n) is int and n >= 0 for n in row):
            what = "param_alignment_paddings must be lists of counts"
            raise CheckpointError("CKP103", f"{path}: {what}")
    return list(gaps)


def _settings(base: Any) -> list[dict[str, Any]]:
    groups = base.get("param_groups") if isinstance(base, dict) else None
    return [plain(g) for g in groups if isinstance(g, dict)] if isinstance(groups, list) else []


def _loss_scale(scaler: Any) -> float | None:
    scale = scaler.fields.get("cur_scale") if isinstance(scaler, Plain) else None
    return float(scale) if isinstance(scale, int | float) else None
