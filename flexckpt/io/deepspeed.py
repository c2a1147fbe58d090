# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of DeepSpeed's ZeRO checkpoints, stages 0 to 3: flat partitions become shards."""

from pathlib import Path
from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.index import Reader, SourceIndex
from flexckpt.io.deepspeed_entries import Entries
from flexckpt.io.deepspeed_files import find_files, holds_model_states, tag_folder
from flexckpt.io.deepspeed_model import (
    add_frozen_parts,
    add_module,
    aliases_of,
    extra_of,
    place_all,
    rules_of,
)
from flexckpt.io.deepspeed_optimizer import OptimizerPart, read_optimizer_part
from flexckpt.io.deepspeed_partitions import Partitions, even, straddling
from flexckpt.io.deepspeed_ranks import Ranks, Shapes, merged
from flexckpt.io.deepspeed_tp import Placement
from flexckpt.io.deepspeed_universal import READER_UNIVERSAL
from flexckpt.states import WEIGHT

__all__ = ["READER_UNIVERSAL", "READER_ZERO"]

MASTER = "master"


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

    Weights have the dtype of the model. Where a checkpoint has the weights of a 16-bit model in
    fp32 only (ZeRO-3), they are listed as "master" alone. Partitions become flat ranges.

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
    ranks = Ranks(files, parts)
    if not parts and ranks.first.get("param_shapes") is not None:
        raise CheckpointError("CKP102", f"{files.folder}: the *_optim_states.pt are missing")
    return _Index(path, ranks).build()


class _Index:
    """An index that is being built, stage by stage of a pipeline."""

    def __init__(self, path: Path, ranks: Ranks) -> None:
        self.path, self.ranks = path, ranks
        self.parts = ranks.parts
        self.entries = Entries()
        self.rules = rules_of(ranks)

    def build(self) -> SourceIndex:
        aliases = aliases_of(self.ranks)
        for stage in self.ranks.stages:
            shapes = {mp: self.ranks.shapes(mp) for mp in stage}
            local_shapes = [merged(shapes[mp]) for mp in stage]
            placements = place_all(self.entries, self.ranks, local_shapes, self.rules)
            for local, mp in enumerate(stage if self.parts else ()):
                for number, names in enumerate(shapes[mp]):
                    cut = self._cut(mp, number, names, len(shapes[mp]))
                    self._add_group(local, mp, number, names, cut, placements)
            add_frozen_parts(self.entries, self.ranks, stage, self.rules)
            add_module(self.entries, self.ranks, stage, self.rules, aliases)
        keys = self.entries.keys
        return SourceIndex(
            "deepspeed",
            self.path,
            self.entries.files,
            self.entries.by_weight(),
            extra=self._extra(),
            aliases={a: k for a, k in aliases.items() if k in keys and a not in keys},
        )

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
                        f"{part.path}: {state!r} of group {number} has {tensor.numel} elements, "
                        f"but its parameters make {cut.filled[dp]}, or {cut.padded} with padding",
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
        """The states of a group from the partitions of an mp rank, ``local`` in its stage."""
        masters = {name: self._master_name(mp, number, name) for name in names}
        parts = [self.parts[dp, mp] for dp in range(self.ranks.dp_size)]
        sources = [(self.entries.file(p.path), p.groups[number].flat.items()) for p in parts]
        for piece in cut.slices:
            name = piece.name
            file, tensors = sources[piece.rank]
            for state, tensor in tensors if name in placements else ():
                self.entries.add_flat(
                    name,
                    masters[name] if state == MASTER else state,
                    placements[name],
                    local,
                    names[name],
                    (piece.start, piece.stop),
                    tensor,
                    piece.at,
                    file,
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

    def _extra(self) -> dict[str, Any]:
        """Counters, settings of the optimizer, and the user's client state."""
        extra = extra_of(self.ranks)
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
