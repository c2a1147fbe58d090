# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random programs as text, with the values that NumPy gives them."""

from dataclasses import dataclass, field
from math import prod

import numpy as np
from hypothesis import strategies as st

from tests.flexckpt.lang.evaluate import numbers


@dataclass
class Example:
    """A program.

    Attributes:
        source: the tensors it starts from.
        lines: its statements.
        final: the tensors that are left at the end.
        lossless: every element of the source is in the final tensors, once.
    """

    source: dict[str, np.ndarray]
    lines: list[str] = field(default_factory=list)
    final: dict[str, np.ndarray] = field(default_factory=dict)
    lossless: bool = True


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """Programs of up to eight statements over up to three tensors of up to three dimensions."""
    shapes = draw(
        st.lists(
            st.lists(st.sampled_from([1, 2, 3, 4, 6]), max_size=3).map(tuple),
            min_size=1,
            max_size=3,
        )
    )
    source = numbers(**{f"s{i}": shape for i, shape in enumerate(shapes)})
    example = Example(source, final=dict(source))
    for _ in range(draw(st.integers(0, 8))):
        name = draw(st.sampled_from(sorted(example.final)))
        draw(st.sampled_from(_OPERATIONS))(draw, example, name)
    return example


def _new(example: Example) -> str:
    return f"t{len(example.lines)}.{len(example.final)}"


def _step(example: Example, used: list[str], line: str, made: dict[str, np.ndarray]) -> None:
    example.lines.append(line)
    for name in used:
        example.final.pop(name, None)
    example.final.update({name: np.asarray(array) for name, array in made.items()})


def _axis(draw: st.DrawFn, rank: int) -> int:
    return draw(st.integers(-rank, rank - 1))


def _split(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    if not array.ndim:
        return
    axis = _axis(draw, array.ndim)
    n = array.shape[axis]
    if draw(st.booleans()):
        parts = draw(st.sampled_from([p for p in range(1, max(n, 2) + 1) if n % p == 0]))
        sizes, note = [n // parts] * parts, ""
    else:
        cuts = sorted(draw(st.lists(st.integers(0, n), max_size=3)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, n], strict=True)]
        note = f", sizes={sizes}" if draw(st.booleans()) else f", sizes='{sizes}'"
    base = _new(example)
    names = [f"{base}.{i}" for i in range(len(sizes))]
    parts_of = np.split(array, np.cumsum(sizes)[:-1], axis)
    line = f"{name} -> {', '.join(names)}, axis={axis}{note}"
    _step(example, [name], line, dict(zip(names, parts_of, strict=True)))


def _partners(draw: st.DrawFn, example: Example, name: str, axis: int | None) -> list[str]:
    """Names whose tensors can be joined with ``name``."""

    def shape(n: str) -> tuple[int, ...]:
        s = list(example.final[n].shape)
        if axis is not None and len(s) == len(example.final[name].shape):
            s[axis] = 0
        return tuple(s)

    fitting = [n for n in sorted(example.final) if shape(n) == shape(name)]
    others = draw(st.lists(st.sampled_from(fitting), max_size=4))
    if len({name, *others}) != 1 + len(others):
        example.lossless = False  # something is joined with itself
    return [name, *others]


def _concat(draw: st.DrawFn, example: Example, name: str) -> None:
    rank = example.final[name].ndim
    if not rank:
        return
    axis = _axis(draw, rank)
    names = _partners(draw, example, name, axis)
    arrays = [example.final[n] for n in names]
    new = _new(example)
    line = f"{', '.join(names)} -> {new}, axis={axis}"
    _step(example, names, line, {new: np.concatenate(arrays, axis)})


def _stack(draw: st.DrawFn, example: Example, name: str) -> None:
    axis = _axis(draw, example.final[name].ndim + 1)
    names = _partners(draw, example, name, None)
    arrays = [example.final[n] for n in names]
    new = _new(example)
    note = draw(st.sampled_from([f"stack={axis}", f"stack, axis={axis}"]))
    _step(example, names, f"{', '.join(names)} -> {new}, {note}", {new: np.stack(arrays, axis)})


def _unstack(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    if not array.ndim:
        return
    axis = _axis(draw, array.ndim)
    if not array.shape[axis]:
        return
    base = _new(example)
    made = {f"{base}.{i}": a for i, a in enumerate(np.moveaxis(array, axis, 0))}
    note = draw(st.sampled_from([f"unstack={axis}", f"unstack, axis={axis}"]))
    _step(example, [name], f"{name} -> {', '.join(made)}, {note}", made)


def _permute(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    order = draw(st.permutations(range(array.ndim)))
    text = f"'{list(order)}'"
    new = draw(st.sampled_from([_new(example), name]))
    _step(example, [name], f"{name} -> {new}, permute={text}", {new: array.transpose(order)})


def _transpose(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    new = draw(st.sampled_from([_new(example), name]))
    _step(example, [name], f"{name}^T -> {new}", {new: array.T})


def _reshape(draw: st.DrawFn, example: Example, name: str) -> None:
    """Into any shape of as many elements."""
    array = example.final[name]
    rest, shape = array.size, []
    while len(shape) < 3 and (rest > 1 or draw(st.booleans())):
        factors = [p for p in range(1, rest + 1) if rest % p == 0]
        shape.append(draw(st.sampled_from(factors)) if factors and len(shape) < 2 else rest)
        rest = rest // shape[-1] if shape[-1] else 1
    if prod(shape) != array.size:
        shape = [array.size]
    said = list(shape)
    if shape and prod(shape) and draw(st.booleans()):
        said[draw(st.integers(0, len(shape) - 1))] = -1
    new = _new(example)
    line = f"{name} -> {new}, reshape='{said}'"
    _step(example, [name], line, {new: array.reshape(shape)})


def _pad(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    if not array.ndim:
        return
    axis = _axis(draw, array.ndim)
    extra = draw(st.integers(0, 3))
    width = [(0, 0)] * array.ndim
    width[axis] = (0, extra)
    new = _new(example)
    line = f"{name} -> {new}, pad={array.shape[axis] + extra}, axis={axis}"
    _step(example, [name], line, {new: np.pad(array, width)})


def _unpad(draw: st.DrawFn, example: Example, name: str) -> None:
    array = example.final[name]
    if not array.ndim:
        return
    axis = _axis(draw, array.ndim)
    n = draw(st.integers(0, array.shape[axis]))
    if n < array.shape[axis]:
        example.lossless = False
    new = _new(example)
    line = f"{name} -> {new}, unpad={n}, axis={axis}"
    _step(example, [name], line, {new: np.take(array, range(n), axis)})


def _copy(draw: st.DrawFn, example: Example, name: str) -> None:
    """Two copies of one tensor: still lossless, as the inverse reads one of them."""
    array, base = example.final[name], _new(example)
    example.lines.append(f"{name} -> {base}.x")
    _step(example, [name], f"{name} -> {base}.y", {f"{base}.x": array, f"{base}.y": array})


def _rename(draw: st.DrawFn, example: Example, name: str) -> None:
    array, new = example.final[name], _new(example)
    _step(example, [name], f"{name} -> {new}", {new: array})


_OPERATIONS = (
    _split,
    _concat,
    _permute,
    _transpose,
    _stack,
    _unstack,
    _reshape,
    _pad,
    _unpad,
    _copy,
    _rename,
)
