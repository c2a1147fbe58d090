# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Where the parameters of a tensor-parallel DeepSpeed engine lie in those of the whole model."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from flexckpt.boxes import full_box
from flexckpt.io.deepspeed_entries import runs_of
from flexckpt.io.deepspeed_tp import Part, Rules
from flexckpt.model import Shard
from flexckpt.states import is_scalar


class Places:
    """The places of an engine's parameters; they are whole where it has no tensor parallelism.

    The rules are those that DeepSpeed writes into its checkpoints (``universal_checkpoint_info``).

    Args:
        engine: what ``deepspeed.initialize`` returned. All ranks of a tensor-parallel group do this
            together.

    Raises:
        CheckpointError: as :meth:`Rules.place`.
    """

    def __init__(self, engine: Any) -> None:
        self.parts: dict[str, tuple[tuple[int, ...], list[Part]]] = {}
        if getattr(engine, "mp_world_size", 1) == 1:
            return
        from deepspeed.utils.bwc import bwc_tensor_model_parallel_group

        group = bwc_tensor_model_parallel_group(engine.mpu)
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        mine = {name: tuple(_shape(p)) for p, name in engine.param_names.items()}
        everyone: list[dict[str, tuple[int, ...]]] = [mine] * size
        dist.all_gather_object(everyone, mine, group=group)
        info = getattr(engine.module, "universal_checkpoint_info", None)
        rules = Rules(info if isinstance(info, dict) else None)
        for name in mine:
            placement = rules.place(name, [shapes[name] for shapes in everyone])
            # A replica has the place of the first rank's.
            self.parts[name] = placement.shape, placement.ranks[rank] or placement.ranks[0]

    def __call__(self, shards: Iterable[Shard]) -> list[Shard]:
        """Shards of the whole model for shards of what this rank has of it; they share memory."""
        if not self.parts:
            return list(shards)
        return [moved for shard in shards for moved in self._moved(shard)]

    def _moved(self, shard: Shard) -> Iterator[Shard]:
        if shard.key not in self.parts or is_scalar(shard.state):
            yield shard
            return
        whole, parts = self.parts[shard.key]
        local = tuple(shard.global_shape)
        for part in parts:
            if part.local == full_box(local):
                span = shard.flat_range
                yield Shard(
                    shard.key, shard.tensor, whole, part.offset, local, span, state=shard.state
                )
            elif shard.flat_range is None:
                view = shard.tensor[tuple(map(slice, part.local.start, part.local.stop))]
                yield Shard(shard.key, view, whole, part.offset, state=shard.state)
            else:
                yield from _runs(shard, whole, part, shard.flat_range)


def _runs(
    shard: Shard, whole: tuple[int, ...], part: Part, span: tuple[int, int]
) -> Iterator[Shard]:
    """What a range of a flattened local parameter has of one part of it."""
    start = shard.tensor.storage_offset() - span[0]
    for begin, run in runs_of(part, tuple(shard.global_shape), span, 0):
        assert run.strides is not None
        view = torch.as_strided(shard.tensor, run.shape, run.strides, start + begin)
        yield Shard(shard.key, view, whole, run.offset, state=shard.state)


def _shape(parameter: Any) -> Iterable[int]:
    shape: Iterable[int] = getattr(parameter, "ds_shape", parameter.shape)
    return shape
