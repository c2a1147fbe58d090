# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of DeepSpeed's ZeRO checkpoints, stages 0 to 3: flat partitions become shards of parameters."""

from math import prod
from pathlib import Path
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.index import Reader, SourceIndex
from flexckpt.io.deepspeed_entries import Entries
from flexckpt.io.deepspeed_files import field, find_files, holds_model_states, plain, tag_folder
from flexckpt.io.deepspeed_optimizer import OptimizerPart, read_optimizer_part
from flexckpt.io.deepspeed_partitions import Partitions, even, even_piece, straddling
from flexckpt.io.deepspeed_ranks import Ranks, Shapes, merged
from flexckpt.io.deepspeed_tp import Placement, Rules
from flexckpt.io.torch_file import FileTensor
from flexckpt.states import WEIGHT

MASTER = "master"

# What DeepSpeed itself puts into a file of model states; the rest is the user's client state.
_OWN = frozenset(
    # fmt: off
    [
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "shared_params",
        "frozen_param_fragments",
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "skipped_steps",
        "global_steps",
        "global_samples",
        "dp_world_size",
        "mp_world_size",
        "ds_config",
        "ds_version",
        "checkpoint_parallel_dimensions",
        "universal_checkpoint_info",
        "num_experts",
        "ds_autoep_layers",
        "autoep_layers",
    ]
    # fmt: on
)
_KEPT = ("global_steps", "global_samples", "skipped_steps", "lr_scheduler", "ds_version")


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a ZeRO checkpoint, or a folder whose ``latest`` names one."""
    try:
        folder = tag_folder(path, "latest")
    except CheckpointError:
        return True  # there is a `latest`, and reading says what is wrong with it
    except OSError:
        return False
    return holds_model_states(folder) and not (folder / "zero").is_dir()


def read_index(path: Path) -> SourceIndex:
    """The tensors of a ZeRO checkpoint.

    Weights have the dtype of the model. Where a checkpoint has the weights of a 16-bit model in fp32
    only (ZeRO-3), they are listed as "master" alone. Partitions become flat ranges.

    Args:
        path: the folder that ``save_checkpoint`` was given, where ``latest`` names the tag, or the
            folder of a tag.

    Raises:
        CheckpointError: CKP101 to CKP109, CKP202: a file is missing, damaged or hostile, or files
            contradict one another.
    """
    files = find_files(tag_folder(path, "latest"))
    if files.experts:
        raise CheckpointError("CKP109", f"{files.folder}: files of experts are not supported")
    parts = {rank: read_optimizer_part(file) for rank, file in files.optimizer.items()}
    return _Index(path, Ranks(files, parts)).build()


class _Index:
    """An index that is being built, stage by stage of a pipeline."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        self.path, self.ranks = path, ranks
        self.parts = ranks.parts
        self.entries = Entries()
        part = self.parts.get((0, 0))
        info = ranks.first.get("universal_checkpoint_info") or (part.info if part else None)
        self.rules = Rules(info if isinstance(info, dict) else None)
        self.aliases = self._shared()

    def build(self) -> SourceIndex:
        for stage in self.ranks.stages:
            shapes = {mp: self.ranks.shapes(mp) for mp in stage}
            placements = self._placements([merged(shapes[mp]) for mp in stage])
            for local, mp in enumerate(stage if self.parts else ()):
                for number, names in enumerate(shapes[mp]):
                    cut = self._cut(mp, number, names, len(shapes[mp]))
                    self._add_group(local, mp, number, names, cut, placements)
            if self.ranks.by_parameter:
                self._add_frozen_parts(stage)
            self._add_module(stage)
        keys = self.entries.keys
        return SourceIndex(
            "deepspeed",
            self.path,
            self.entries.files,
            self.entries.entries,
            extra=self._extra(),
            aliases={a: k for a, k in self.aliases.items() if k in keys and a not in keys},
        )

    def _placements(self, shapes: list[Shapes]) -> dict[str, Placement]:
        """Of the parameters of a stage that no earlier one has, by the local shapes of its ranks."""
        for names in shapes[1:]:
            for name in sorted(shapes[0].keys() ^ names.keys())[:1]:
                raise CheckpointError(
                    "CKP202", f"{self.ranks.folder}: only some of the mp ranks have {name!r}"
                )
        known = self.entries.keys
        return {
            name: self.rules.place(name, [local[name] for local in shapes])
            for name in shapes[0]
            if name not in known
        }

    def _cut(self, mp: int, number: int, names: Shapes, groups: int) -> Partitions:
        """How a group is cut over the data-parallel ranks; their flat tensors must be as long."""
        parts = [self.parts[dp, mp] for dp in range(self.ranks.dp_size)]
        for part in parts:
            if len(part.groups) != groups or part.by_parameter != self.ranks.by_parameter:
                raise CheckpointError(
                    "CKP202",
                    f"{part.path} has {len(part.groups)} groups, the model states {groups}",
                )
        if self.ranks.by_parameter:
            cut = even(names, len(parts))
        else:
            cut = straddling(names, _gaps(parts[0], number, len(names)), len(parts))
        for dp, part in enumerate(parts):
            for state, tensor in part.groups[number].flat.items():
                if tensor.numel not in (cut.padded, cut.filled[dp]):
                    raise CheckpointError(
                        "CKP103",
                        f"{part.path}: {state!r} of group {number} has {tensor.numel} elements, but "
                        f"its parameters make {cut.filled[dp]}, or {cut.padded} with padding",
                    )
        return cut

    def _add_group(
        self,
        local: int,
        mp: int,
        number: int,
        names: Shapes,
        cut: Partitions,
        placements: dict[str, Placement],
    ) -> None:
        """The states of a group from the partitions of an mp rank, which is ``local`` in its stage."""
        masters = {name: self._master_name(mp, number, name) for name in names}
        for piece in cut.slices:
            name = piece.name
            part = self.parts[piece.rank, mp]
            for state, tensor in part.groups[number].flat.items() if name in placements else ():
                self.entries.add_flat(
                    name,
                    masters[name] if state == MASTER else state,
                    placements[name],
                    local,
                    names[name],
                    (piece.start, piece.stop),
                    tensor,
                    piece.at,
                    part.path,
                )
        first = self.parts[0, mp]
        for state, tensor in first.groups[number].scalars.items() if local == 0 else ():
            for name in names:
                if name in placements:
                    self.entries.add_scalar(name, state, tensor, first.path)

    def _master_name(self, mp: int, number: int, name: str) -> str:
        """ "weight" where partitions have the dtype of the model, "master" where it has 16 bits."""
        tensor = self.ranks.module(mp).get(name)
        dtype = self.parts[0, mp].groups[number].flat[MASTER].dtype
        return WEIGHT if tensor is None or tensor.dtype == dtype else MASTER

    def _add_frozen_parts(self, stage: list[int]) -> None:
        """Frozen parameters of ZeRO-3, cut evenly over the data-parallel ranks."""
        shapes = [self.ranks.frozen_shapes(mp) for mp in stage]
        for name, placement in self._placements(shapes).items():
            for local, mp in enumerate(stage):
                numel = prod(shapes[local][name])
                piece, cuts = even_piece(numel, self.ranks.dp_size)
                for dp, span in enumerate(cuts):
                    path = self.ranks.model_files[dp, mp]
                    states = self.ranks.models[dp, mp]
                    tensor = field(states, path, "frozen_param_fragments", name, kind=FileTensor)
                    if tensor.numel not in (piece, span[1] - span[0]) or len(tensor.shape) != 1:
                        raise CheckpointError(
                            "CKP103",
                            f"{path}: the part of {name!r} has shape {tensor.shape}, not "
                            f"({piece},)",
                        )
                    if span[0] < span[1] or not numel:
                        self.entries.add_flat(
                            name,
                            WEIGHT,
                            placement,
                            local,
                            shapes[local][name],
                            span,
                            tensor,
                            0,
                            path,
                        )

    def _add_module(self, stage: list[int]) -> None:
        """Weights, frozen parameters and buffers that the model states hold as they are."""
        modules = [self.ranks.module(mp) for mp in stage]
        buffers = self.ranks.first.get("buffer_names")
        buffers = set(buffers) if isinstance(buffers, list) else set()
        for name in modules[0]:
            parameter = name not in buffers
            if name in self.aliases or (name, WEIGHT) in self.entries.entries:
                continue
            if parameter and self.ranks.by_parameter:
                continue  # an empty stand-in for a partitioned parameter
            local = modules if parameter else modules[:1]
            if not all(name in module for module in local):
                raise CheckpointError(
                    "CKP202", f"{self.ranks.folder}: only some of the mp ranks have {name!r}"
                )
            placement = self.rules.place(name, [module[name].shape for module in local])
            for rank, module in enumerate(local):
                path = self.ranks.model_files[0, stage[rank]]
                self.entries.add_whole(name, WEIGHT, placement, rank, module[name], path)

    def _shared(self) -> dict[str, str]:
        """Further names of parameters, with the names that have their data."""
        shared = self.ranks.first.get("shared_params")
        found = shared.items() if isinstance(shared, dict) else ()
        return {a: n for a, n in found if isinstance(a, str) and isinstance(n, str)}

    def _extra(self) -> dict[str, Any]:
        """Counters, settings of the optimizer, and the user's client state."""
        first = self.ranks.first
        extra = {key: plain(first[key]) for key in _KEPT if key in first}
        extra["client_state"] = plain({k: v for k, v in first.items() if k not in _OWN})
        part = self.parts.get((0, 0))
        if part is not None:
            extra["loss_scale"] = part.loss_scale
            extra["optimizer_numbers"] = part.groups[0].numbers if part.groups else {}
            extra["param_groups"] = [
                {**group, "params": self._names(group.get("params"))} for group in part.settings
            ]
        return extra

    def _names(self, groups: Any) -> list[str]:
        shapes = self.ranks.shapes(0)
        wanted = groups if isinstance(groups, list) else []
        return [
            name for k in wanted if type(k) is int and 0 <= k < len(shapes) for name in shapes[k]
        ]


def _gaps(part: OptimizerPart, number: int, count: int) -> list[int]:
    """Padding behind the parameters of a group of ZeRO-1/2."""
    if part.gaps is None:
        return [0] * count
    gaps = part.gaps[number] if number < len(part.gaps) else []
    if len(gaps) != count:
        raise CheckpointError(
            "CKP202",
            f"{part.path}: group {number} has {count} parameters, but {len(gaps)} paddings",
        )
    return gaps


READER_ZERO = Reader("deepspeed", recognizes, read_index)
