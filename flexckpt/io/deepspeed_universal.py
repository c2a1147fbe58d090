# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reader of DeepSpeed's universal checkpoints: a folder per parameter, a file per state."""

from pathlib import Path
from typing import Any

from flexckpt.boxes import c_strides, full_box
from flexckpt.errors import CheckpointError
from flexckpt.index import Reader, SourceIndex
from flexckpt.io.deepspeed_entries import Entries
from flexckpt.io.deepspeed_files import find_files, plain, read_states, tag_folder
from flexckpt.io.deepspeed_model import (
    add_frozen_parts,
    add_module,
    aliases_of,
    buffers_of,
    extra_of,
    rules_of,
)
from flexckpt.io.deepspeed_ranks import Ranks, merged
from flexckpt.io.deepspeed_tp import Part, Placement
from flexckpt.io.torch_file import FileTensor, read_torch_file
from flexckpt.states import WEIGHT, is_scalar

MASTER = "master"
FP32 = "fp32"  # DeepSpeed's name for the master
OPTIMIZER = "optimizer_state.pt"
MARKER = "latest_universal"


def recognizes(path: Path) -> bool:
    """Whether ``path`` is a universal checkpoint, or a folder whose ``latest_universal`` names one.

    A folder that ``latest`` makes a ZeRO checkpoint, too, is none: name the folder inside.
    """
    try:
        folder = path if (path / "latest").is_file() else tag_folder(path, MARKER)
        zero = folder / "zero"
        return zero.is_dir() and any(zero.glob(f"*/{FP32}.pt"))
    except CheckpointError:
        return True  # there is a marker, and reading says what is wrong with it
    except OSError:
        return False


def read_index(path: Path) -> SourceIndex:
    """The tensors of a universal checkpoint.

    The fp32 weights of a 16-bit model are listed as "master", those of others as "weight". Frozen
    parameters and buffers come from the model states, where there are any.

    Args:
        path: the folder with ``zero`` in it, or one whose ``latest_universal`` names it.

    Raises:
        CheckpointError: CKP101 to CKP109, CKP202: a file is missing, damaged or hostile, or files
            contradict one another.
    """
    folder = tag_folder(path, MARKER)
    files = find_files(folder)
    ranks = Ranks(files, {}) if files.model or files.model_parts else None
    return _Index(path, folder, ranks).build()


class _Index:
    """An index that is being built."""

    def __init__(self, path: Path, folder: Path, ranks: Ranks | None) -> None:
        self.path, self.folder, self.ranks = path, folder, ranks
        self.entries = Entries()
        self.aliases = aliases_of(ranks) if ranks else {}
        self.numbers: dict[str, float] = {}
        self.shapes = merged(ranks.shapes(0)) if ranks else {}

    def build(self) -> SourceIndex:
        buffers = buffers_of(self.ranks) if self.ranks else set()
        found = sorted(p for p in (self.folder / "zero").iterdir() if p.is_dir())
        for parameter in found:
            name = parameter.name
            if name not in self.aliases and name not in buffers and self._is_trained(parameter):
                self._add_parameter(parameter)
        if self.ranks is not None:
            rules, trained = rules_of(self.ranks), frozenset(self.entries.keys)
            for stage in self.ranks.stages:
                add_frozen_parts(self.entries, self.ranks, stage, rules)
                add_module(self.entries, self.ranks, stage, rules, self.aliases, trained)
        keys = self.entries.keys
        for parameter in found:  # what neither the optimizer nor the model states know
            if parameter.name not in keys and parameter.name not in self.aliases:
                self._add_parameter(parameter)
        if not self.entries.entries:
            raise CheckpointError("CKP103", f"{self.folder}: there are no parameters in zero/")
        optimizer = self.folder / "zero" / OPTIMIZER
        settings = read_states(optimizer) if optimizer.is_file() else {}
        self._add_common_step(settings, optimizer)
        keys = self.entries.keys
        return SourceIndex(
            "universal",
            self.path,
            self.entries.files,
            self.entries.by_weight(),
            extra=self._extra(settings),
            aliases={a: k for a, k in self.aliases.items() if k in keys and a not in keys},
        )

    def _is_trained(self, parameter: Path) -> bool:
        """Whether the optimizer had it; ds_to_universal writes fp32 weights of others, too."""
        return parameter.name in self.shapes if self.shapes else True

    def _add_parameter(self, parameter: Path) -> None:
        name = parameter.name
        states = {file.stem: file for file in sorted(parameter.glob("*.pt"))}
        if FP32 not in states:
            raise CheckpointError("CKP102", f"{parameter}/{FP32}.pt is missing")
        shape: tuple[int, ...] | None = None
        for state in (FP32, *(s for s in states if s != FP32)):
            path = states[state]
            value = read_torch_file(path, unknown="opaque")
            tensor = value.get("param") if isinstance(value, dict) else value
            if is_scalar(state):
                self._add_scalar(name, state, tensor, path)
                continue
            if not isinstance(tensor, FileTensor):
                raise CheckpointError("CKP103", f"{path} does not hold a tensor")
            tensor = self._with_shape(name, tensor)
            shape = shape or tensor.shape
            if tensor.shape != shape:
                what = f"has shape {tensor.shape}, {FP32}.pt has {shape}"
                raise CheckpointError("CKP202", f"{path} {what}")
            kept = self._master_name(name, tensor) if state == FP32 else state
            zero = (0,) * len(shape)
            placement = Placement(shape, [[Part(full_box(shape), zero)]])
            self.entries.add_whole(name, kept, placement, 0, tensor, path)

    def _add_scalar(self, name: str, state: str, value: Any, path: Path) -> None:
        if isinstance(value, FileTensor) and value.numel == 1:
            self.entries.add_scalar(name, state, value, path)
        elif isinstance(value, int | float):
            if self.numbers.setdefault(state, value) != value:
                raise CheckpointError("CKP203", f"{path}: {state} differs between parameters")
        else:
            raise CheckpointError("CKP103", f"{path} does not hold a number")

    def _with_shape(self, name: str, tensor: FileTensor) -> FileTensor:
        """ds_to_universal writes parameters of ZeRO-3 flat; the model states have the shapes."""
        shape = self.shapes.get(name)
        flat = FileTensor(tensor.dtype, (tensor.numel,), (1,), *tensor[3:])
        if shape is None or shape == tensor.shape or tensor != flat:
            return tensor
        whole = FileTensor(tensor.dtype, shape, c_strides(shape), *tensor[3:])
        return whole if whole.numel == tensor.numel else tensor

    def _master_name(self, name: str, tensor: FileTensor) -> str:
        module = self.ranks.module(0).get(name) if self.ranks else None
        return WEIGHT if module is None or module.dtype == tensor.dtype else MASTER

    def _add_common_step(self, settings: dict[str, Any], path: Path) -> None:
        """ds_to_universal keeps one step for all parameters of ZeRO-3, with the settings."""
        inner = settings.get("optimizer_state_dict")
        states = inner.get("state") if isinstance(inner, dict) else None
        first = states.get(0) if isinstance(states, dict) else None
        step = first.get("step") if isinstance(first, dict) else None
        for key, state in list(self.entries.entries) if isinstance(step, FileTensor) else ():
            if state == "exp_avg" and (key, "step") not in self.entries.entries:
                self._add_scalar(key, "step", step, path)

    def _extra(self, settings: dict[str, Any]) -> dict[str, Any]:
        extra = extra_of(self.ranks) if self.ranks else {}
        listed = settings.get("param_groups")
        groups = (
            [plain(g) for g in listed if isinstance(g, dict)] if isinstance(listed, list) else []
        )
        names = [list(group) for group in self.ranks.shapes(0)] if self.ranks else []
        for number, group in enumerate(groups):
            group["params"] = names[number] if len(names) == len(groups) else []
        if not any(group.keys() - {"params"} for group in groups):
            groups = []  # only their number was known
        return {**extra, "param_groups": groups, "optimizer_numbers": self.numbers}


READER_UNIVERSAL = Reader("universal", recognizes, read_index)
