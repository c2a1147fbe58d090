# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How names, tensors and sizes are written for people."""

import re
from collections.abc import Iterable, Sequence

import torch

# A number that stands alone: that of a layer or an expert, not that of "w1" or "conv2d".
_NUMBER = re.compile(r"(?<![A-Za-z0-9])\d+(?![A-Za-z0-9])")
_SHOWN = 4  # numbers of a gap-ridden set that are written out
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def template(name: str) -> tuple[str, ...]:
    """The parts of the name between the numbers that stand alone."""
    return tuple(_NUMBER.split(name))


def patterns(names: Iterable[str]) -> list[tuple[str, int]]:
    """Patterns that stand for the names, and how many names each stands for.

    ``model.layers.{0..31}.mlp.up_proj.weight`` is one. They come in the order in which they first
    appear. A pattern of several sets of numbers stands for at most all of their combinations.
    """
    groups: dict[tuple[str, ...], list[list[str]]] = {}
    for name in names:
        groups.setdefault(template(name), []).append(_NUMBER.findall(name))
    return [(_fill(parts, numbers), len(numbers)) for parts, numbers in groups.items()]


def _fill(parts: tuple[str, ...], numbers: list[list[str]]) -> str:
    holes = [_numbers(set(column)) for column in zip(*numbers, strict=True)]
    return "".join(a + b for a, b in zip(parts, [*holes, ""], strict=True))


def _numbers(texts: set[str]) -> str:
    """``7``, ``{0..31}``, ``{0, 2, 5}`` or ``{0..95, 48 of them}``."""
    if len(texts) == 1:
        return texts.pop()
    values = sorted(map(int, texts))
    first, last = values[0], values[-1]
    if last - first == len(values) - 1 and len(values) > 2:
        return f"{{{first}..{last}}}"
    if len(values) <= _SHOWN:
        return f"{{{', '.join(map(str, values))}}}"
    return f"{{{first}..{last}, {len(values)} of them}}"


def size_text(count: float) -> str:
    """``412 B``, ``1.5 GiB``."""
    unit = _UNITS[0]
    for larger in _UNITS[1:]:
        if count < 1000:
            break
        count, unit = count / 1024, larger
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"


def tensor_text(shape: Sequence[int], dtype: torch.dtype | str) -> str:
    """``[4096, 1024] bfloat16``."""
    return f"[{', '.join(map(str, shape))}] {dtype_text(dtype)}"


def dtype_text(dtype: torch.dtype | str) -> str:
    """``bfloat16``."""
    return str(dtype).removeprefix("torch.")
