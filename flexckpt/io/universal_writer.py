# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writer of DeepSpeed's universal checkpoints, as DeepSpeed 0.19 loads them at any world size."""

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flexckpt.errors import CheckpointError
from flexckpt.io.deepspeed_universal import FP32, MARKER, MASTER, OPTIMIZER
from flexckpt.io.sinks import Output, Stream, overlapped
from flexckpt.states import WEIGHT, is_scalar

# The layout is that of this version. DeepSpeed refuses files that name none.
_VERSION = "0.19.8"
# DeepSpeed restores as many groups of the optimizer as are listed. Where the source has not kept
# them, there are this many without settings, so that an engine's groups keep their own.
_UNKNOWN_GROUPS = 1000
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")


class Written(NamedTuple):
    """A file of a parameter that was written, and the value of a scalar."""

    key: str
    state: str
    shape: tuple[int, ...]
    value: float | None


class UniversalSink:
    """The universal layout, written by several ranks; see ``flexckpt.io.sinks.Sink``.

    A folder per parameter holds ``fp32.pt`` from its "master", or from its "weight" where there is
    none, and a file for every other state. What only has a weight (a frozen parameter, a buffer) is
    kept in its own dtype in ``fp32.pt``; DeepSpeed does not read it.

    Args:
        outputs: all tensors that will be written.
        extra: what the source holds beside tensors: "param_groups", counters, "lr_scheduler",
            "client_state" as the reader of DeepSpeed's checkpoints gives them.

    Raises:
        CheckpointError: CKP108 if the name of a parameter cannot be that of a folder.
    """

    own_disks = False

    def __init__(self, outputs: Sequence[Output], extra: Mapping[str, Any]) -> None:
        self.extra = extra
        steps = extra.get("global_steps")
        self.tag = f"global_step{steps}_universal" if isinstance(steps, int) else "universal"
        self.masters = {o.key for o in outputs if o.state == MASTER}
        self.weights = {o.key: o.dtype for o in outputs if o.state == WEIGHT}
        self.trained = {o.key for o in outputs if o.state != WEIGHT}
        steps_known = any(o.state == "step" for o in outputs) or extra.get("optimizer_numbers")
        if self.trained and not steps_known:
            warnings.warn(
                "the source has no step of the optimizer, so DeepSpeed will go on from step 0",
                stacklevel=4,
            )
        for key in dict.fromkeys(o.key for o in outputs):
            if not key or "/" in key or "\0" in key or key in (".", ".."):
                raise CheckpointError("CKP108", f"{key!r} cannot be the name of a folder")

    def begin(self, folder: Path) -> None:
        """Make the folder of the parameters."""
        (folder / self.tag / "zero").mkdir(parents=True)

    def write(
        self, folder: Path, rank: int, outputs: Sequence[Output], stream: Stream
    ) -> list[Written]:
        """Write the tensors of one rank, one file each."""
        zero = folder / self.tag / "zero"
        records: list[Written] = []

        def consume(batch: list[tuple[Output, torch.Tensor]]) -> None:
            for output, tensor in batch:
                if output.state != WEIGHT or output.key not in self.masters:
                    records.append(self._write_one(zero, output, tensor))

        overlapped(stream, consume)
        return records

    def finish(self, folder: Path, records: Sequence[Sequence[Written]]) -> None:
        """Write the settings of the optimizer, the model states and the marker."""
        root = folder / self.tag
        found = [record for rows in records for record in rows]
        step = self._write_missing_steps(root / "zero", found)
        groups = self._param_groups()
        # ZeRO-3 looks for the step and the settings in another place than ZeRO-1 and 2.
        inner = {"state": {0: {"step": step}}, "param_groups": groups}
        settings = {"ds_version": _VERSION, "param_groups": groups, "optimizer_state_dict": inner}
        _save(settings, root / "zero" / OPTIMIZER)
        states = self._model_states(found)
        for name in ("mp_rank_00", "zero_pp_rank_0_mp_rank_00"):  # for ZeRO-1 and 2, and for ZeRO-3
            _save(states, root / f"{name}_model_states.pt")
        _write_text(folder / MARKER, self.tag)

    def _write_one(self, zero: Path, output: Output, tensor: torch.Tensor) -> Written:
        parameter = zero / output.key
        parameter.mkdir(exist_ok=True)
        if is_scalar(output.state):
            value = float(tensor)
            _save(tensor.detach().clone(), parameter / f"{output.state}.pt")
            return Written(output.key, output.state, (), value)
        is_fp32 = output.state in (MASTER, WEIGHT)
        if is_fp32 and output.key in self.trained:
            tensor = tensor.float()
        name = FP32 if is_fp32 else output.state
        _save({"param": _alone(tensor), "cat_dim": 0}, parameter / f"{name}.pt")
        return Written(output.key, name, tuple(tensor.shape), None)

    def _write_missing_steps(self, zero: Path, found: Iterable[Written]) -> torch.Tensor:
        """The step of the optimizer; where the source has a mere number, all parameters get it."""
        values = [r.value for r in found if r.state == "step" and r.value is not None]
        number = (self.extra.get("optimizer_numbers") or {}).get("step")
        if not values and number is not None:
            for key in sorted(self.trained):
                _save(torch.tensor(float(number)), zero / key / "step.pt")
            values = [float(number)]
        return torch.tensor(max(values, default=0.0))

    def _param_groups(self) -> list[dict[str, Any]]:
        kept = self.extra.get("param_groups") or [{}] * _UNKNOWN_GROUPS
        return [
            {
                **{k: tuple(v) if isinstance(v, list) else v for k, v in group.items()},
                "params": [number],
            }
            for number, group in enumerate(kept)
        ]

    def _model_states(self, found: Iterable[Written]) -> dict[str, Any]:
        """What DeepSpeed looks for in the states of a model, with empty tensors for dtypes."""
        extra = self.extra
        shapes = {r.key: torch.Size(r.shape) for r in found if r.state == FP32}
        trained = OrderedDict((k, s) for k, s in sorted(shapes.items()) if k in self.trained)
        listed = [g.get("params") or [] for g in extra.get("param_groups") or []]
        if sorted(name for names in listed for name in names) == list(trained):
            param_shapes = [OrderedDict((n, trained[n]) for n in names) for names in listed]
        else:
            param_shapes = [trained]
        client = extra.get("client_state")
        return {
            **(client if isinstance(client, dict) else {}),
            **{name: extra.get(name) or 0 for name in _COUNTERS},
            "module": OrderedDict(
                (name, torch.empty(0, dtype=self.weights[name]))
                for name in trained
                if name in self.weights
            ),
            "buffer_names": [],
            "optimizer": None,
            "param_shapes": param_shapes,
            "frozen_param_shapes": None,
            "frozen_param_fragments": None,
            "shared_params": {},
            "lr_scheduler": extra.get("lr_scheduler"),
            "data_sampler": None,
            "random_ltd": None,
            "dp_world_size": 1,
            "mp_world_size": 1,
            "ds_config": {},
            "ds_version": _VERSION,
        }


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a storage of its own: ``torch.save`` writes storages as a whole."""
    dense = tensor.detach().contiguous()
    if not dense.numel():
        return dense.clone()
    raw: Any = dense.reshape(-1).view(torch.uint8).numpy()
    return torch.frombuffer(memoryview(raw), dtype=dense.dtype).view(dense.shape)


def _save(value: Any, path: Path) -> None:
    """A file of ``torch.save``, on the disk."""
    try:
        with path.open("xb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
    except (OSError, RuntimeError) as error:  # the writer of torch wraps what the system says
        raise CheckpointError("CKP108", f"{path} cannot be written: {error}") from error


def _write_text(path: Path, text: str) -> None:
    try:
        with path.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise CheckpointError("CKP108", f"{path} cannot be written: {error}") from None
