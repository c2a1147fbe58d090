# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""flexckpt.explain: what a mapping does to the tensors of a checkpoint; moves nothing."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, Literal

from flexckpt.index import SourceIndex
from flexckpt.io.detect import read_index
from flexckpt.lang import Program, compile_program
from flexckpt.model import TensorSpec
from flexckpt.pieces import Piece, Variable
from flexckpt.wording import dtype_text, patterns, template, tensor_text

Tensors = str | os.PathLike[str] | SourceIndex | Mapping[str, TensorSpec]

# What is missing is shown, not refused.
TOLERANT = {"missing": "ignore", "unexpected": "ignore"}


@dataclass(frozen=True)
class Becomes:
    """A destination and what it is made of.

    Attributes:
        name: of the destination.
        shape, dtype: of the destination.
        sources: the tensors that it takes values from, in the order of their places.
        how: what happens to the values; empty where the tensor passes as it is.
        identity: it passes under its own name because no statement speaks of it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    sources: tuple[str, ...]
    how: str
    identity: bool


@dataclass(frozen=True)
class Explanation:
    """What a mapping does.

    Attributes:
        outputs: every destination that gets a value.
        source: shape and dtype of the tensors of the source.
        missing: destinations that nothing fills.
        unexpected: tensors of the source that nothing takes.
        dropped: tensors of the source that the mapping deletes.
        kept: destinations that the mapping leaves as they are.
        assumed: statements whose inverse cuts into equal parts, because nothing tells the lengths.
    """

    outputs: list[Becomes]
    source: dict[str, tuple[tuple[int, ...], str]]
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """All of it as JSON types, a row per destination."""
        return asdict(self)

    def text(self) -> str:
        """For people: one paragraph per pattern of names."""
        moved = [one for one in self.outputs if not one.identity]
        same = [one for one in self.outputs if one.identity]
        blocks = [
            *self._section("Rewritten", moved),
            *self._section("Unchanged, by their own name", same),
            *_names("Missing: no source", self.missing),
            *_names("Unexpected: taken by nothing", self.unexpected),
            *_names("Dropped by the mapping", self.dropped),
            *_names("Kept as they are in the destination", self.kept),
            *_lines("Inverted as if all parts were of equal length", self.assumed),
        ]
        return "\n".join([*blocks, self._summary()]) + "\n"

    def _section(self, title: str, rows: list[Becomes]) -> list[str]:
        if not rows:
            return []
        groups: dict[tuple[Any, ...], list[Becomes]] = {}
        for row in rows:
            sources = tuple(dict.fromkeys(map(template, row.sources)))
            kind = template(row.name), row.shape, row.dtype, sources, row.how
            groups.setdefault(kind, []).append(row)
        lines = [title]
        for group in groups.values():
            lines += self._group(group)
        return [*lines, ""]

    def _group(self, rows: list[Becomes]) -> list[str]:
        first = rows[0]
        times = f"  ({len(rows)} tensors)" if len(rows) > 1 else ""
        ((pattern, _),) = patterns(row.name for row in rows)
        head = f"  {pattern}  {tensor_text(first.shape, first.dtype)}"
        if first.identity:
            return [head + times]
        lines = [head + times]
        sources = dict.fromkeys(name for row in rows for name in row.sources)
        each: dict[str, list[str]] = {}
        for name in sources:
            shape, dtype = self.source[name]
            each.setdefault(tensor_text(shape, dtype), []).append(name)
        for kind, names in each.items():
            lines += [f"    <- {text}  {kind}" for text, _ in patterns(names)]
        if first.how:
            lines.append(f"       {first.how}")
        return lines

    def _summary(self) -> str:
        identity = sum(one.identity for one in self.outputs)
        counts = {
            "rewritten": len(self.outputs) - identity,
            "unchanged": identity,
            "missing": len(self.missing),
            "unexpected": len(self.unexpected),
            "dropped": len(self.dropped),
            "kept": len(self.kept),
        }
        return ", ".join(f"{count} {what}" for what, count in counts.items())


def explain(
    src: Tensors,
    dst: Tensors | None = None,
    *,
    aoa: str | Sequence[str] | None = None,
    reverse: bool = False,
    strict: bool | Mapping[str, str] = TOLERANT,
    layout: Literal["paddle", "torch"] = "paddle",
) -> Explanation:
    """Say what a mapping would do. Reads indices only, moves nothing.

    Args:
        src: a checkpoint of any known layout, its index, or descriptions of tensors by name.
        dst: likewise what is to be filled, for example a checkpoint of the same model; None if all
            that comes out of the mapping is wanted.
        aoa: the mapping.
        reverse: ``aoa`` describes the opposite direction; its inverse is explained.
        strict: as in :func:`flexckpt.load`; unless told, missing and unexpected tensors are no
            errors.
        layout: as in :func:`flexckpt.load`.

    Raises:
        AoaError: the mapping is malformed or does not fit the tensors.
        CheckpointError: a path holds no checkpoint, or a damaged one.
    """
    source = _specs(src)
    program = compile_program(
        aoa or [],
        source,
        None if dst is None else _specs(dst),
        reverse=reverse,
        strict=strict,
        layout=layout,
    )
    return _explanation(program, source)


def _specs(tensors: Tensors) -> dict[str, TensorSpec]:
    if isinstance(tensors, Mapping):
        return dict(tensors)
    index = tensors if isinstance(tensors, SourceIndex) else read_index(tensors)
    return index.specs()


def _explanation(program: Program, source: Mapping[str, TensorSpec]) -> Explanation:
    outputs = [
        _becomes(name, variable, source, name in program.identity)
        for name, variable in program.outputs.items()
        if name not in program.kept
    ]
    shapes = {
        key: (tuple(spec.shape), dtype_text(spec.dtype or "any")) for key, spec in source.items()
    }
    return Explanation(
        outputs,
        shapes,
        missing=sorted(program.missing),
        unexpected=sorted(program.unexpected),
        dropped=sorted(program.dropped),
        kept=sorted(program.kept),
        assumed=list(program.assumed),
    )


def _becomes(
    name: str, variable: Variable, source: Mapping[str, TensorSpec], identity: bool
) -> Becomes:
    ordered = sorted(variable.pieces, key=lambda piece: piece.dst)
    sources = tuple(dict.fromkeys(piece.source for piece in ordered if piece.source is not None))
    how = "" if identity else _how(variable, ordered, sources, source)
    return Becomes(name, tuple(variable.shape), dtype_text(variable.dtype), sources, how, identity)


def _how(
    variable: Variable,
    pieces: Sequence[Piece],
    sources: Sequence[str],
    specs: Mapping[str, TensorSpec],
) -> str:
    """In words, what happens to the values on their way."""
    words = []
    if len(pieces) > 1:
        of = f" of {len(sources)} tensors" if len(sources) > 1 else ""
        words.append(f"{len(pieces)} pieces{of}")
    elif len(sources) == 1 and pieces[0].numel < prod(specs[sources[0]].shape):
        words.append("a part")
    if any(_is_permuted(piece) for piece in pieces):
        words.append("transposed" if len(variable.shape) == 2 else "axes permuted")
    if len(sources) == 1 and len(specs[sources[0]].shape) != len(variable.shape):
        words.append("reshaped")
    casts = dict.fromkeys(piece.casts for piece in pieces if piece.casts)
    words += [f"cast to {' and then '.join(one)}" for one in casts]
    fills = dict.fromkeys(piece.fill for piece in pieces if piece.source is None)
    words += [f"padded with {fill:g}" for fill in fills]
    return ", ".join(words)


def _is_permuted(piece: Piece) -> bool:
    """Whether walking along the axes of the destination jumps back among those of the source."""
    axes = [dim.src_axis for dim in sorted(piece.dims, key=lambda d: (d.dst_axis, -d.dst_step))]
    return axes != sorted(axes)


def _names(title: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    found = patterns(names)
    rows = [f"  {text}" + (f"  ({count} tensors)" if count > 1 else "") for text, count in found]
    return [title, *rows, ""]


def _lines(title: str, texts: Sequence[str]) -> list[str]:
    return [title, *(f"  {text}" for text in texts), ""] if texts else []
