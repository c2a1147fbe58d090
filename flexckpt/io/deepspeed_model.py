# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What the model states of DeepSpeed give: weights, buffers, frozen parameters, names, counters."""

from collections.abc import Sequence
from math import prod
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed_entries import Entries
from flexckpt.io.deepspeed_files import field, plain
from flexckpt.io.deepspeed_partitions import even_piece
from flexckpt.io.deepspeed_ranks import Ranks, Shapes
from flexckpt.io.deepspeed_tp import Placement, Rules
from flexckpt.io.torch_file import FileTensor
from flexckpt.states import WEIGHT

# What DeepSpeed itself puts into a file of model states; the rest is the user's client state.
_TENSORS = ("module", "optimizer", "param_shapes", "frozen_param_shapes", "frozen_param_fragments")
_NAMES = ("buffer_names", "shared_params", "num_experts", "ds_autoep_layers", "autoep_layers")
_SETTINGS = ("ds_config", "universal_checkpoint_info", "data_sampler", "random_ltd")
_SIZES = ("dp_world_size", "mp_world_size", "checkpoint_parallel_dimensions")
_KEPT = ("global_steps", "global_samples", "skipped_steps", "lr_scheduler", "ds_version")
_OWN = frozenset({*_TENSORS, *_NAMES, *_SETTINGS, *_SIZES, *_KEPT})


def rules_of(ranks: Ranks) -> Rules:
    """The rules of tensor parallelism: in the model states or in the optimizer's."""
    part = ranks.parts.get((0, 0))
    info = ranks.first.get("universal_checkpoint_info")
    info = info if info is not None or part is None else part.info
    return Rules(info if isinstance(info, dict) else None)


def place_all(
    entries: Entries, ranks: Ranks, shapes: Sequence[Shapes], rules: Rules
) -> dict[str, Placement]:
    """Of the parameters of a stage that no earlier one has, by the local shapes of its ranks.

    Raises:
        CheckpointError: CKP202 if only some of the ranks have a parameter; as :meth:`Rules.place`.
    """
    for names in shapes[1:]:
        for name in sorted(shapes[0].keys() ^ names.keys())[:1]:
            raise CheckpointError(
                "CKP202", f"{ranks.folder}: only some of the mp ranks have {name!r}"
            )
    known = entries.keys
    return {
        name: rules.place(name, [local[name] for local in shapes])
        for name in shapes[0]
        if name not in known
    }


def add_frozen_parts(entries: Entries, ranks: Ranks, stage: Sequence[int], rules: Rules) -> None:
    """Add the frozen parameters of ZeRO-3, which are cut evenly over the data-parallel ranks.

    Raises:
        CheckpointError: CKP103 if a part is missing or has another size.
    """
    if not ranks.by_parameter:
        return
    shapes = [ranks.frozen_shapes(mp) for mp in stage]
    for name, placement in place_all(entries, ranks, shapes, rules).items():
        for local, mp in enumerate(stage):
            shape = shapes[local][name]
            piece, cuts = even_piece(prod(shape), ranks.dp_size)
            for dp, span in enumerate(cuts):
                path, states = ranks.model_files[dp, mp], ranks.model(dp, mp)
                tensor = field(states, path, "frozen_param_fragments", name, kind=FileTensor)
                if tensor.shape not in ((piece,), (span[1] - span[0],)):
                    what = f"the part of {name!r} has shape {tensor.shape}, not ({piece},)"
                    raise CheckpointError("CKP103", f"{path}: {what}")
                file = entries.file(path)
                if span[0] < span[1] or not prod(shape):
                    entries.add_flat(name, WEIGHT, placement, local, shape, span, tensor, 0, file)


def add_module(
    entries: Entries,
    ranks: Ranks,
    stage: Sequence[int],
    rules: Rules,
    aliases: dict[str, str],
    skip: frozenset[str] = frozenset(),
) -> None:
    """Add weights, frozen parameters and buffers that the model states hold as they are.

    Args:
        entries: are added to, where they have no weight of that name.
        ranks: the files.
        stage: mp ranks of one stage of the pipeline.
        rules: of tensor parallelism; buffers are alike on all ranks.
        aliases: names that are left out.
        skip: further names that are left out.

    Raises:
        CheckpointError: CKP202 if only some of the ranks have a tensor; as :meth:`Rules.place`.
    """
    modules = [ranks.module(mp) for mp in stage]
    buffers = buffers_of(ranks)
    for name in modules[0]:
        parameter = name not in buffers
        if name in aliases or name in skip or (name, WEIGHT) in entries.entries:
            continue
        if parameter and ranks.by_parameter:
            continue  # an empty stand-in for a partitioned parameter
        local = modules if parameter else modules[:1]
        if not all(name in module for module in local):
            raise CheckpointError(
                "CKP202", f"{ranks.folder}: only some of the mp ranks have {name!r}"
            )
        placement = rules.place(name, [module[name].shape for module in local])
        for rank, module in enumerate(local):
            path = ranks.model_files[0, stage[rank]]
            entries.add_whole(name, WEIGHT, placement, rank, module[name], path)


def buffers_of(ranks: Ranks) -> set[str]:
    """Names of the buffers that the model states hold."""
    names = ranks.first.get("buffer_names")
    return {n for n in names if isinstance(n, str)} if isinstance(names, list) else set()


def aliases_of(ranks: Ranks) -> dict[str, str]:
    """Further names of parameters, with the names that have their data."""
    shared = ranks.first.get("shared_params")
    found = shared.items() if isinstance(shared, dict) else ()
    return {a: n for a, n in found if isinstance(a, str) and isinstance(n, str)}


def extra_of(ranks: Ranks) -> dict[str, Any]:
    """Counters, the scheduler of the learning rate, and the user's client state."""
    extra = {key: plain(ranks.first[key]) for key in _KEPT if key in ranks.first}
    extra["client_state"] = plain({k: v for k, v in ranks.first.items() if k not in _OWN})
    return extra
