# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Reference: a compiled variable as a NumPy array, index by index."""

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from flexckpt.model import TensorSpec
from flexckpt.pieces import Piece, Variable

Arrays = Mapping[str, np.ndarray]


def evaluate(variable: Variable, source: Arrays) -> np.ndarray:
    """The values of a variable; fails where its pieces do not tile it exactly."""
    out = np.full(variable.shape, np.nan)
    filled = np.zeros(variable.shape, dtype=int)
    paint(variable.pieces, source, out, filled)
    assert (filled == 1).all(), "the pieces do not tile the variable exactly"
    return out


def paint(pieces: Iterable[Piece], source: Arrays, out: np.ndarray, filled: np.ndarray) -> None:
    """Write the values of pieces, and count how often each element is written."""
    for piece in pieces:
        for steps in np.ndindex(*[d.extent for d in piece.dims]):
            src, dst = list(piece.src), list(piece.dst)
            for i, d in zip(steps, piece.dims, strict=True):
                src[d.src_axis] += i * d.src_step
                dst[d.dst_axis] += i * d.dst_step
            out[tuple(dst)] = (
                piece.fill if piece.source is None else source[piece.source][tuple(src)]
            )
            filled[tuple(dst)] += 1


def numbers(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Arrays of the given shapes in which every element of all of them has another value."""
    out, start = {}, 0
    for name, shape in shapes.items():
        n = int(np.prod(shape))
        out[name.replace("__", ".")] = np.arange(start, start + n, dtype=np.float64).reshape(shape)
        start += n
    return out


def spec(
    shape: Iterable[int], dtype: torch.dtype = torch.float64, parts: int = 1, axis: int = 0
) -> TensorSpec:
    """A tensor, cut into equal parts on one axis."""
    shape = tuple(shape)
    if parts == 1:
        return TensorSpec(shape, dtype)
    n = shape[axis] // parts
    local = (*shape[:axis], n, *shape[axis + 1 :])
    offsets = [tuple(r * n if k == axis else 0 for k in range(len(shape))) for r in range(parts)]
    return TensorSpec(shape, dtype, tuple((offset, local) for offset in offsets))


def specs(arrays: Arrays) -> dict[str, TensorSpec]:
    return {name: spec(a.shape) for name, a in arrays.items()}


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(a.copy()) for name, a in arrays.items()}
