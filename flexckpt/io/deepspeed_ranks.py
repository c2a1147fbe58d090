# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The ranks of a DeepSpeed checkpoint: every file that should be there is, and none besides."""

from typing import Any

from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed_files import Files, Rank, read_shapes, read_states, tensors
from flexckpt.io.deepspeed_optimizer import OptimizerPart
from flexckpt.io.torch_file import FileTensor

Shapes = dict[str, tuple[int, ...]]


class Ranks:
    """The contents of the files of all ranks.

    Ranks of data parallelism are called ``dp``; an ``mp`` rank of DeepSpeed counts tensor-parallel
    ranks within the stages of a pipeline.

    Args:
        files: of the checkpoint.
        parts: contents of its optimizer files.

    Attributes:
        by_parameter: ZeRO-3, where each rank has its own model states.
        model_files: files of the model states; ``dp`` is 0 but in ZeRO-3.
        first: model states of the first rank.
        dp_size, mp_size: numbers of ranks.
        stages: mp ranks of each stage of the pipeline.

    Raises:
        CheckpointError: CKP102 if files are missing, CKP103 if they are malformed, CKP109 for
            groups over different ranks, CKP202 if there are too many or they contradict others.
    """

    def __init__(self, files: Files, parts: dict[Rank, OptimizerPart]) -> None:
        self.folder, self.parts = files.folder, parts
        self.by_parameter = any(part.by_parameter for part in parts.values()) or not files.model
        whole = {(0, mp): file for mp, file in files.model.items()}
        self.model_files = files.model_parts if self.by_parameter else whole
        if (0, 0) not in self.model_files:
            name = "zero_pp_rank_0_mp_rank_00" if self.by_parameter else "mp_rank_00"
            raise CheckpointError("CKP102", f"{self.folder}: {name}_model_states.pt is missing")
        self._models: dict[Rank, dict[str, Any]] = {}
        self.first = self.model(0, 0)
        self.dp_size, self.mp_size = self._count()
        self.stages = self._stages()
        self._modules: dict[int, dict[str, FileTensor]] = {}

    def model(self, dp: int, mp: int) -> dict[str, Any]:
        """The model states of a rank. In ZeRO-3 all have the same but frozen parts: read few."""
        if (dp, mp) not in self._models:
            path = self.model_files[dp, mp]
            states = read_states(path)
            if "buffer_names" not in states:
                raise CheckpointError("CKP103", f"{path} does not hold the states of a model")
            self._models[dp, mp] = states
        return self._models[dp, mp]

    def shapes(self, mp: int) -> list[Shapes]:
        """Local shapes of the trained parameters by group."""
        groups = self.model(0, mp).get("param_shapes")
        return [] if groups is None else read_shapes(groups, self.model_files[0, mp])

    def frozen_shapes(self, mp: int) -> Shapes:
        """Local shapes of the frozen parameters, where they are cut (ZeRO-3)."""
        groups = self.model(0, mp).get("frozen_param_shapes") or {}
        return merged(read_shapes(groups, self.model_files[0, mp]))

    def module(self, mp: int) -> dict[str, FileTensor]:
        """The state dict of the model of an mp rank; in ZeRO-3 its parameters are empty."""
        if mp not in self._modules:
            self._modules[mp] = dict(tensors(self.model(0, mp).get("module")))
        return self._modules[mp]

    def _count(self) -> tuple[int, int]:
        mp_size = 1 + max(mp for _, mp in self.model_files)
        dp_size = self._dp_size()
        if mp_size * dp_size > 16 * (len(self.model_files) + len(self.parts)):
            raise CheckpointError(
                "CKP102",
                f"{self.folder}: of {dp_size} x {mp_size} ranks there are only a few files",
            )
        mp_ranks = range(mp_size)
        if self.parts:
            wanted = {(dp, mp) for dp in range(dp_size) for mp in mp_ranks}
            self._compare(wanted, set(self.parts), "optimizer states")
        dp_ranks = range(dp_size if self.by_parameter else 1)
        wanted = {(dp, mp) for dp in dp_ranks for mp in mp_ranks}
        self._compare(wanted, set(self.model_files), "model states")
        return dp_size, mp_size

    def _dp_size(self) -> int:
        counts = {count for part in self.parts.values() for count in part.counts}
        if len(counts) > 1:
            raise CheckpointError(
                "CKP109",
                f"{self.folder}: groups over different numbers of ranks {sorted(counts)} (experts, "
                "or files of several saves) are not supported",
            )
        if counts:
            return counts.pop()
        return 1 + max(dp for dp, _ in self.model_files)

    def _compare(self, wanted: set[Rank], found: set[Rank], kind: str) -> None:
        for dp, mp in sorted(wanted - found)[:1]:
            raise CheckpointError(
                "CKP102", f"{self.folder}: the {kind} of dp rank {dp}, mp rank {mp} are missing"
            )
        for dp, mp in sorted(found - wanted)[:1]:
            raise CheckpointError(
                "CKP202",
                f"{self.folder}: there are {kind} of dp rank {dp}, mp rank {mp}, which the other "
                "files do not know; they may be left from an earlier save",
            )

    def _stages(self) -> list[list[int]]:
        dims = self.first.get("checkpoint_parallel_dimensions")
        stages = dims.get("pp_degree") if isinstance(dims, dict) else 1
        if type(stages) is not int or stages < 1 or self.mp_size % stages:
            raise CheckpointError(
                "CKP202",
                f"{self.folder}: {self.mp_size} mp ranks cannot be {stages!r} pipeline stages",
            )
        width = self.mp_size // stages
        return [list(range(k * width, (k + 1) * width)) for k in range(stages)]


def merged(groups: list[Shapes]) -> Shapes:
    return {name: shape for group in groups for name, shape in group.items()}
