# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What users hand to flexckpt: the description of a tensor, and a shard of one."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from operator import index

import torch

from flexckpt.boxes import Region, shard_regions
from flexckpt.errors import LayoutError
from flexckpt.states import WEIGHT


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """``"bfloat16"`` of ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor without its data.

    Args:
        shape: global shape.
        dtype: a torch dtype; None for a destination that takes what it gets.
        shards: ``(offset, shape)`` of each shard; None for one that is whole. Several shards may be
            the same box (replicas).
        by_mesh: the shards follow from the placements of a DTensor, which do not tell whether a
            fused tensor is fused in each of them or as a whole (FSDP): the layout macros then want
            ``tp=``.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype | None
    shards: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None = None
    by_mesh: bool = False


@dataclass(slots=True)
class Shard:
    """Part of a global tensor that this process holds.

    Args:
        key: name of the parameter.
        tensor: the data; the local box, or with ``flat_range`` one dimension.
        global_shape: shape of the whole parameter.
        offset: of the local box in the global tensor.
        local_shape: of the local box; the shape of ``tensor`` if None.
        flat_range: ``tensor`` holds the elements ``[start, stop)`` of the local box in C order.
        state: which state of the parameter, a key of :data:`flexckpt.states.STATES` or a name of
            your own.

    Raises:
        LayoutError: if the numbers do not fit one another.
    """

    key: str
    tensor: torch.Tensor
    global_shape: Sequence[int]
    offset: Sequence[int]
    local_shape: Sequence[int] | None = None
    flat_range: tuple[int, int] | None = None
    state: str = WEIGHT

    def __post_init__(self) -> None:
        self.global_shape = _integers(self.key, "global_shape", self.global_shape)
        self.offset = _integers(self.key, "offset", self.offset)
        if self.local_shape is None:
            if self.flat_range is not None:
                raise LayoutError("LAY102", f"shard of {self.key!r}: flat_range needs local_shape")
            self.local_shape = self.tensor.shape
        self.local_shape = _integers(self.key, "local_shape", self.local_shape)
        check_box(self.key, self.global_shape, self.offset, self.local_shape)
        if self.flat_range is None:
            want = self.local_shape
        else:
            start, stop = _integers(self.key, "flat_range", self.flat_range, length=2)
            self.flat_range = start, stop
            if not 0 <= start <= stop <= prod(self.local_shape):
                raise LayoutError(
                    "LAY101",
                    f"shard of {self.key!r}: flat_range [{start}, {stop}) leaves the local box of "
                    f"{prod(self.local_shape)} elements",
                )
            want = (stop - start,)
        if tuple(self.tensor.shape) != want:
            raise LayoutError(
                "LAY102",
                f"shard of {self.key!r}: tensor must have shape {want}, not "
                f"{tuple(self.tensor.shape)}",
            )

    def regions(self) -> list[Region]:
        """Where the shard's elements lie in its tensor's storage, in elements."""
        tensor = self.tensor
        assert self.local_shape is not None
        if self.flat_range is None:
            strides, base = tensor.stride(), int(tensor.storage_offset())
            return shard_regions(self.offset, self.local_shape, None, strides, base)
        if tensor.numel() > 1 and tensor.stride(0) != 1:
            raise LayoutError("LAY102", f"shard of {self.key!r}: a flattened tensor must be dense")
        return shard_regions(
            self.offset, self.local_shape, self.flat_range, None, int(tensor.storage_offset())
        )


def _integers(
    key: str, name: str, values: Sequence[int], length: int | None = None
) -> tuple[int, ...]:
    """Python's own integers, whoever made them: those of NumPy cannot be written as JSON."""
    found: tuple[int, ...] | None = None
    with suppress(TypeError):
        found = tuple(map(index, values))
    if found is None or length not in (None, len(found)):
        raise LayoutError("LAY101", f"shard of {key!r}: {name} must be integers, not {values!r}")
    return found


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape are equal; NaN equals NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def check_box(
    key: str, global_shape: Sequence[int], offset: Sequence[int], local_shape: Sequence[int]
) -> None:
    """Raise unless the local box lies inside its global tensor."""
    if not len(global_shape) == len(offset) == len(local_shape):
        raise LayoutError(
            "LAY101",
            f"shard of {key!r}: global_shape {tuple(global_shape)}, offset {tuple(offset)} and "
            f"local_shape {tuple(local_shape)} must have one entry per axis",
        )
    for g, o, n in zip(global_shape, offset, local_shape, strict=True):
        if o < 0 or n < 0 or o + n > g:
            raise LayoutError(
                "LAY101",
                f"shard of {key!r}: the box at {tuple(offset)} of shape {tuple(local_shape)} "
                f"leaves the global shape {tuple(global_shape)}",
            )
