# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The source index: which tensors a checkpoint holds, in which shards, and where their bytes lie.

Every reader of `flexckpt.io` turns its layout into this; the planner knows nothing of files.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flexckpt.boxes import Region, shard_regions
from flexckpt.model import TensorSpec
from flexckpt.quiet_gc import quiet_gc
from flexckpt.states import WEIGHT, is_scalar


class Stored(NamedTuple):
    """A shard as it lies in a file.

    Attributes:
        offset, shape: the local box in the global tensor.
        flat_range: the stored elements are ``[start, stop)`` of the local box in C order; else all.
        file: position in :attr:`SourceIndex.files`.
        position: byte of the first element in the file; None if :attr:`SourceIndex.resolve` must
            tell.
        strides: of the local box in elements, where it is not in C order. Not with ``flat_range``.
        blob: what the reader's ``resolve`` needs to find the bytes: ``(offset, length)`` in the
            file.
        checksum: of the stored bytes, as written in the index, or None.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    flat_range: tuple[int, int] | None
    file: int
    position: int | None
    strides: tuple[int, ...] | None = None
    blob: tuple[int, int] | None = None
    checksum: str | None = None

    @property
    def span(self) -> int:
        """Elements from the first to the last stored one."""
        if self.flat_range is not None:
            return self.flat_range[1] - self.flat_range[0]
        if self.strides is None or 0 in self.shape:
            return prod(self.shape)
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    def regions(self) -> list[Region]:
        """Regions in elements, counted from :attr:`position`."""
        return shard_regions(self.offset, self.shape, self.flat_range, self.strides)


@dataclass(slots=True)
class Entry:
    """One state of one parameter in a checkpoint: global shape, dtype of the stored data, shards.

    Replicas (several shards of one box) may be listed; the planner takes one of them.
    ``by_mesh``: see :class:`flexckpt.TensorSpec`.
    """

    key: str
    state: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    shards: list[Stored]
    by_mesh: bool = False


@dataclass(slots=True)
class SourceIndex:
    """A checkpoint, seen from outside.

    Attributes:
        layout: name of the layout: "flexckpt", "dcp", "deepspeed", "universal", "megatron",
            "paddle", "safetensors", "torch".
        path: what the user named.
        files: absolute paths; Stored.file counts in these.
        entries: by ``(key, state)``.
        extra: what else the checkpoint holds and is plain data (JSON types): training step,
            settings.
        resolve: completes a Stored whose ``position`` is None.
        aliases: further names of a key that the checkpoint knows to be the same tensor (tied
            weights).
        single_device: the layout stores every tensor as one device would have it, so that its
            shards tell nothing of the order of what is fused in it, and no macro may count them.
        marks: what each file holds from byte 8 on if it is the one that is meant; empty if nothing
            tells.
    """

    layout: str
    path: Path
    files: list[Path]
    entries: dict[tuple[str, str], Entry]
    extra: dict[str, Any] = field(default_factory=dict)
    resolve: Callable[[Stored], Stored] | None = None
    aliases: dict[str, str] = field(default_factory=dict)
    single_device: bool = False
    marks: list[bytes] = field(default_factory=list)

    def with_aliases(self, wanted: Container[str]) -> "SourceIndex":
        """The index with an entry for every wanted name that is an alias."""
        entries = dict(self.entries)
        for alias, key in self.aliases.items():
            if alias in wanted and (alias, WEIGHT) not in entries and (key, WEIGHT) in entries:
                entries[alias, WEIGHT] = replace(entries[key, WEIGHT], key=alias)
        return self if len(entries) == len(self.entries) else replace(self, entries=entries)

    def specs(self, state: str | None = None) -> dict[str, TensorSpec]:
        """The tensors by key, with their distinct boxes as shards unless ``single_device``.

        Of one state, or of the weight of each key, or where there is none of its first state that
        is not a scalar. A key of which there are only scalars has their shape.
        """
        out: dict[str, TensorSpec] = {}
        with quiet_gc():
            for (key, name), entry in self.entries.items():
                if name == state if state else key not in out and not is_scalar(name):
                    chosen = entry if state else self.entries.get((key, WEIGHT), entry)
                    out[key] = TensorSpec(
                        chosen.shape, chosen.dtype, self._boxes(chosen), chosen.by_mesh
                    )
            for (key, _), entry in self.entries.items():
                if state is None and key not in out:
                    out[key] = TensorSpec(entry.shape, entry.dtype)
        return out

    def _boxes(self, entry: Entry) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None:
        if self.single_device or len(entry.shards) < 2:
            return None
        boxes = dict.fromkeys([(s.offset, s.shape) for s in entry.shards])
        return tuple(boxes) if len(boxes) > 1 else None


# A reader: whether `path` holds its layout (cheap, never raises), and the index.
class Reader(NamedTuple):
    layout: str
    recognizes: Callable[[Path], bool]
    read_index: Callable[[Path], SourceIndex]
