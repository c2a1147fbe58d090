# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Entries of an index from local tensors: whole ones and ranges of flattened ones."""

from pathlib import Path

from flexckpt.boxes import c_strides, flat_range_boxes, full_box
from flexckpt.errors import CheckpointError
from flexckpt.index import Entry, Stored
from flexckpt.io.deepspeed_tp import Part, Placement
from flexckpt.io.torch_file import FileTensor
from flexckpt.states import WEIGHT

Shape = tuple[int, ...]


class Entries:
    """Entries that are being collected, and the files that they point into."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Entry] = {}
        self._paths: dict[Path, int] = {}

    @property
    def files(self) -> list[Path]:
        return [path.absolute() for path in self._paths]

    def by_weight(self) -> dict[tuple[str, str], Entry]:
        """The entries, weights first: the dtype of a key is that of its first state."""
        return dict(sorted(self.entries.items(), key=lambda item: item[0][1] != WEIGHT))

    @property
    def keys(self) -> set[str]:
        return {key for key, _ in self.entries}

    def add_scalar(self, key: str, state: str, tensor: FileTensor, path: Path) -> None:
        """The one value that a parameter has for ``state``."""
        stored = Stored((), (), None, self.file(path), tensor.position)
        self.entries[key, state] = Entry(key, state, (), tensor.dtype, [stored])

    def add_whole(
        self, key: str, state: str, placement: Placement, rank: int, tensor: FileTensor, path: Path
    ) -> None:
        """A local tensor of tensor-parallel rank ``rank``.

        Raises:
            CheckpointError: CKP202 if another part has another dtype.
        """
        shards = self._entry(key, state, placement.shape, tensor).shards
        file, whole = self.file(path), full_box(tensor.shape)
        for box, offset in placement.ranks[rank]:
            begin = sum(a * s for a, s in zip(box.start, tensor.strides, strict=True))
            position = tensor.position + begin * tensor.dtype.itemsize
            dense = box == whole and tensor.strides == c_strides(tensor.shape)
            strides = None if dense else tensor.strides
            shards.append(Stored(offset, box.shape, None, file, position, strides))

    def add_flat(
        self,
        key: str,
        state: str,
        placement: Placement,
        rank: int,
        shape: Shape,
        span: tuple[int, int],
        tensor: FileTensor,
        at: int,
        file: int,
    ) -> None:
        """Elements ``span`` of the flattened local tensor of rank ``rank``.

        Args:
            key, state: of the parameter.
            placement: where the local tensors lie.
            rank: tensor-parallel rank.
            shape: of the local tensor.
            span: ``[start, stop)`` in the flattened local tensor.
            tensor: a flat one, which holds them from element ``at`` on.
            file: number of its file.

        Raises:
            CheckpointError: CKP202 if another part has another dtype.
        """
        shards = self._entry(key, state, placement.shape, tensor).shards
        size = tensor.dtype.itemsize
        position = tensor.position + at * size
        for part in placement.ranks[rank]:
            if part.local == full_box(shape):
                shards.append(Stored(part.offset, shape, span, file, position))
            else:
                for begin, stored in runs_of(part, shape, span, file):
                    where = position + (begin - span[0]) * size
                    shards.append(stored._replace(position=where))

    def file(self, path: Path) -> int:
        """The number of a file."""
        return self._paths.setdefault(path, len(self._paths))

    def _entry(self, key: str, state: str, shape: Shape, tensor: FileTensor) -> Entry:
        entry = self.entries.get((key, state))
        if entry is None:
            entry = self.entries[key, state] = Entry(key, state, shape, tensor.dtype, [])
        if entry.dtype != tensor.dtype:
            raise CheckpointError(
                "CKP202", f"{key!r} ({state}) is stored as {entry.dtype} and as {tensor.dtype}"
            )
        return entry


def runs_of(part: Part, shape: Shape, span: tuple[int, int], file: int) -> list[tuple[int, Stored]]:
    """What a range of a flattened tensor has of one part, and at which element each run begins."""
    runs, strides = [], c_strides(shape)
    for box in flat_range_boxes(shape, *span):
        common = box.intersect(part.local)
        if common is None:
            continue
        begin = sum(a * s for a, s in zip(common.start, strides, strict=True))
        inside = (a - b for a, b in zip(common.start, part.local.start, strict=True))
        offset = tuple(o + a for o, a in zip(part.offset, inside, strict=True))
        runs.append((begin, Stored(offset, common.shape, None, file, None, strides)))
    return runs
