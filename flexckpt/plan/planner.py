# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The planner: a pure function of (source index, targets of one rank, program).

A rank plans its own targets only; nothing here grows with the number of ranks but the shards it
meets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import ge, le

from flexckpt.boxes import Box, Region
from flexckpt.errors import CheckpointError, LayoutError
from flexckpt.index import Entry, SourceIndex, Stored
from flexckpt.model import dtype_name
from flexckpt.pieces import Piece, Side, Variable, restrict
from flexckpt.plan.copies import Copy, copy_of
from flexckpt.plan.cover import Cover, Preference
from flexckpt.plan.intervals import FEW, Bounds, Intervals
from flexckpt.plan.targets import Target
from flexckpt.quiet_gc import quiet_gc
from flexckpt.states import STAND_INS, WEIGHT, is_scalar, join_name


@dataclass(slots=True)
class Plan:
    """Copies that fill the targets of one rank.

    Attributes:
        shards: the source shards that are met, with their dtype names.
        copies: grouped by target, in the order of the targets.
        ends: ``copies[ends[t - 1] : ends[t]]`` fill target ``t``.
        scalars: target -> how many values its copies bring; they must be equal, and it takes that
            value.
        stand_ins: targets whose state was missing and came from another ("w@master: weight of w").
        names: of the targets.
    """

    shards: list[tuple[Stored, str]] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    scalars: dict[int, int] = field(default_factory=dict)
    stand_ins: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def of_target(self, target: int) -> list[Copy]:
        return self.copies[self.ends[target - 1] if target else 0 : self.ends[target]]


def make_plan(
    index: SourceIndex,
    targets: Sequence[Target],
    variables: Mapping[str, Variable],
    *,
    prefer: Preference | None = None,
    cast: bool = False,
    resolve: bool = True,
    partial: bool = False,
) -> Plan:
    """Plan the copies into ``targets``.

    Args:
        index: what the source holds.
        targets: what is to be filled.
        variables: the evaluated program: a variable for the key of every target.
        prefer: rank of a shard among its replicas, the least is read.
        cast: let values take the dtype of their target where no statement casts them.
        resolve: complete lazily located shards, which reads their files.
        partial: the variables need not fill their targets.

    Raises:
        CheckpointError: CKP201 where the stored shards leave part of a target without data.
        LayoutError: LAY103 where a state's dtype differs from its target's and ``cast`` is off.
    """
    with quiet_gc():
        return _Planner(index, variables, prefer, cast, resolve, partial).run(targets)


class _Planner:
    def __init__(
        self,
        index: SourceIndex,
        variables: Mapping[str, Variable],
        prefer: Preference | None,
        cast: bool,
        resolve: bool,
        partial: bool,
    ) -> None:
        self.index = index
        self.variables = variables
        self.prefer = prefer
        self.cast = cast
        self.partial = partial
        self.resolve = index.resolve if resolve else None
        self.covers: dict[tuple[str, str], tuple[Cover, str]] = {}
        self.pieces: dict[str, Intervals[Piece]] = {}
        self.numbers: dict[Stored, int] = {}
        self.plan = Plan()

    def run(self, targets: Sequence[Target]) -> Plan:
        for number, target in enumerate(targets):
            self.plan.names.append(join_name(target.key, target.state))
            variable = self.variables[target.key]
            if is_scalar(target.state):
                self.plan.scalars[number] = self.scalar(number, target, variable)
            else:
                for region in target.regions:
                    self.fill(number, target, variable, region)
            self.plan.ends.append(len(self.plan.copies))
        return self.plan

    def fill(self, number: int, target: Target, variable: Variable, region: Region) -> None:
        """Plan what one region of a target takes."""
        box = region.box
        whole = box.stop == variable.shape and not any(box.start)
        covered = 0
        for candidate in variable.pieces if whole else self.near(target.key, variable, box):
            for piece in (candidate,) if whole else restrict(candidate, "dst", box):
                if piece.casts and target.state != WEIGHT:
                    piece = piece._replace(casts=())
                if piece.source is None:
                    self.plan.copies.append(copy_of(piece, -1, None, number, region))
                    covered += piece.numel
                else:
                    covered += self.fetch(number, target, piece, region)
        size = box.numel
        if covered != size and not self.partial:
            raise CheckpointError(
                "CKP201",
                f"{join_name(target.key, target.state)!r}: the checkpoint holds {covered} of the "
                f"{size} elements of the box {box.start}..{box.stop}",
            )

    def near(self, key: str, variable: Variable, box: Box) -> Iterator[Piece]:
        if len(variable.pieces) <= FEW:
            return iter(variable.pieces)
        if key not in self.pieces:
            bounds = [bounding_box(p, "dst") for p in variable.pieces]
            self.pieces[key] = Intervals(variable.pieces, bounds)
        return self.pieces[key].meeting(*box)

    def fetch(self, number: int, target: Target, piece: Piece, dst: Region) -> int:
        """Plan the copies of one piece from the shards that hold it; how many elements they are."""
        assert piece.source is not None
        cover, dtype = self.cover(piece.source, target)
        copied = 0
        if cover.whole:
            src, stored = cover.parts[0]
            shard, region = self.number(stored, src, dtype)
            self.plan.copies.append(copy_of(piece, shard, region, number, dst))
            copied = piece.numel
        else:
            start, stop = bounding_box(piece, "src")
            for src, stored in cover.meeting(start, stop):
                box = src.box
                inside = all(map(le, box.start, start)) and all(map(ge, box.stop, stop))
                for part in (piece,) if inside else restrict(piece, "src", box):
                    shard, region = self.number(stored, src, dtype)
                    self.plan.copies.append(copy_of(part, shard, region, number, dst))
                    copied += part.numel
        final = piece.casts[-1] if piece.casts else dtype
        if copied and final != target.dtype and not self.cast and not self.stands_in(piece, target):
            raise LayoutError(
                "LAY103",
                f"{join_name(target.key, target.state)!r} has dtype {target.dtype}, but "
                f"{piece.source!r} gives {final}; cast in the mapping or pass cast=True",
            )
        return copied

    def stands_in(self, piece: Piece, target: Target) -> bool:
        return (piece.source, target.state) not in self.index.entries

    def entry(self, source: str, target: Target) -> Entry:
        entries = self.index.entries
        entry = entries.get((source, target.state))
        if entry is None and target.state in STAND_INS:
            entry = entries.get((source, STAND_INS[target.state]))
            if entry is not None:
                name = join_name(target.key, target.state)
                self.plan.stand_ins.append(f"{name}: {entry.state} of {source}")
        if entry is None:
            raise CheckpointError(
                "CKP201",
                f"the checkpoint holds no {target.state!r} of {source!r} for {target.key!r}",
            )
        return entry

    def cover(self, source: str, target: Target) -> tuple[Cover, str]:
        """The disjoint shards of a source tensor, and the name of their dtype."""
        name = source, target.state
        if name not in self.covers:
            entry = self.entry(source, target)
            weight = self.index.entries.get((source, WEIGHT))
            if weight is not None and weight.shape != entry.shape:
                raise CheckpointError(
                    "CKP202",
                    f"{source!r}: its {entry.state!r} has shape {entry.shape}, the weight "
                    f"{weight.shape}",
                )
            self.covers[name] = Cover(entry, self.prefer), dtype_name(entry.dtype)
        return self.covers[name]

    def number(self, stored: Stored, region: Region, dtype: str) -> tuple[int, Region]:
        """Number of a shard in the plan, located if it was not, and its region."""
        if stored.position is None and self.resolve is not None:
            located = self.resolve(stored)
            if located.strides is not None:
                region = moved(region, located)
            stored = located
        number = self.numbers.get(stored)
        if number is None:
            number = self.numbers[stored] = len(self.plan.shards)
            self.plan.shards.append((stored, dtype))
        return number, region

    def scalar(self, number: int, target: Target, variable: Variable) -> int:
        """Plan to bring the value of each source of a variable; how many there are."""
        sources = dict.fromkeys(p.source for p in variable.pieces if p.source is not None)
        sources = sources or {target.key: None}  # a parameter without elements comes from its own
        for place, source in enumerate(sources):
            entry = self.entry(source, target)
            if prod(entry.shape) != 1 or not entry.shards:
                raise CheckpointError(
                    "CKP202",
                    f"{source!r}: its {target.state!r} must be one value, not of shape "
                    f"{entry.shape}",
                )
            stored = min(entry.shards, key=self.prefer) if self.prefer else entry.shards[0]
            shard, _ = self.number(stored, stored.regions()[0], dtype_name(entry.dtype))
            self.plan.copies.append(Copy(shard, number, (1,), (1,), (1,), 0, place))
        return len(sources)


def bounding_box(piece: Piece, side: Side) -> Bounds:
    """The per-axis range that the indices of a piece span on one side."""
    if side == "dst":
        stop = [a + 1 for a in piece.dst]
        for d in piece.dims:
            stop[d.dst_axis] += (d.extent - 1) * d.dst_step
        return piece.dst, stop
    stop = [a + 1 for a in piece.src]
    for d in piece.dims:
        stop[d.src_axis] += (d.extent - 1) * d.src_step
    return piece.src, stop


def moved(region: Region, stored: Stored) -> Region:
    """The region of a shard whose strides became known."""
    assert stored.strides is not None
    steps = zip(region.box.start, stored.offset, stored.strides, strict=True)
    return Region(region.box, stored.strides, sum((a - b) * s for a, b, s in steps))
