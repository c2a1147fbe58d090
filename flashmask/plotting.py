# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Draw a mask: what is visible, and how much of the work its tiles save."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from flashmask.mask.checks import check_count
from flashmask.mask.counts import exact_visible_pairs
from flashmask.mask.dense import share_heads
from flashmask.mask.flash_mask import FlashMask
from flashmask.mask.tiles import FULL, SKIP, TileCounts, tile_classes, tile_counts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a pixel shows, and its color. The colors differ in lightness and in the blue-orange
# direction, which all common kinds of color vision tell apart.
_PARTIAL_HIDDEN, _PARTIAL_VISIBLE = 2, 3
_COLORS = {
    FULL: ("#2b6ca3", "full tile: no masking"),
    _PARTIAL_VISIBLE: ("#f0a431", "partial tile: visible"),
    _PARTIAL_HIDDEN: ("#fbe6c3", "partial tile: hidden"),
    SKIP: ("#f4f4f4", "skipped tile: no work"),
}
_TILE_LINES = 40  # draw lines between tiles while there are no more than this many along a side


def plot(
    mask: FlashMask,
    *,
    path: str | os.PathLike[str] | None = None,
    batch: int = 0,
    head: int = 0,
    tile: int = 128,
    max_pixels: int = 1024,
    title: str | None = None,
) -> Figure:
    """Draw one mask head of one batch entry, rows downwards, keys to the right.

    Long sequences are sampled: at most `max_pixels` rows and columns are looked at, so memory does
    not grow with Sq x Sk. Density and tile counts in the title are exact nevertheless.

    Args:
        mask: the mask.
        path: where to save the picture, as PNG, SVG or PDF by its suffix; None to save nothing.
        batch: batch entry to draw; any, if the mask holds one for all.
        head: mask head to draw.
        tile: rows and columns per tile.
        max_pixels: rows and columns to sample at most.
        title: first line of the title; by default its numbers of queries and keys.

    Returns:
        The figure, which notebooks show.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        IndexError: there is no such batch entry or mask head.
        ValueError: the mask has no rows or no columns, or `tile` or `max_pixels` is below 1.
    """
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "flashmask.plot needs matplotlib: pip install 'paddle-on-torch[plot]'"
        ) from error
    check_count("tile", tile, 1)
    tile = min(tile, max(mask.seqlen_q, mask.seqlen_k))  # a larger one shows nothing more
    check_count("max_pixels", max_pixels, 1)
    if mask.seqlen_q == 0 or mask.seqlen_k == 0:
        raise ValueError(
            f"a mask to plot must have rows and columns, but has seqlen_q={mask.seqlen_q} and "
            f"seqlen_k={mask.seqlen_k}"
        )
    lowered, block_mask = _one_head(mask, batch, head)
    rows, columns = _sample(mask.seqlen_q, max_pixels), _sample(mask.seqlen_k, max_pixels)
    pixels = _pixels(lowered, block_mask, mask.seqlen_q, rows, columns, tile)
    density = exact_visible_pairs(lowered, mask.seqlen_q, block_mask).item()
    density /= mask.seqlen_q * mask.seqlen_k
    counts = tile_counts(lowered, mask.seqlen_q, block_mask, tile_rows=tile, tile_columns=tile)
    figure = _draw(pixels, mask, tile, _title(mask, title, density, counts, tile))
    if path is not None:
        figure.savefig(path)
    return figure


def _one_head(mask: FlashMask, batch: int, head: int) -> tuple[Tensor, Tensor | None]:
    """Return lowered bounds `[1, 1, 4, Sk]` and block mask of one head, on the CPU."""
    entry = mask.to("cpu")[batch if mask.batch > 1 else 0]
    if not 0 <= head < mask.heads:
        raise IndexError(f"head must be below {mask.heads}, but is {head}")
    lowered = share_heads(entry.lowered(), mask.heads)[:, head : head + 1]
    if entry.block_mask is None:
        return lowered, None
    return lowered, share_heads(entry.block_mask, mask.heads)[:, head : head + 1]


def _sample(size: int, pixels: int) -> Tensor:
    """Return evenly spaced indices below `size`, all of them if there are few enough."""
    count = min(size, pixels)
    return (torch.arange(count) * size + size // 2) // count


def _pixels(
    lowered: Tensor,
    block_mask: Tensor | None,
    seqlen_q: int,
    rows: Tensor,
    columns: Tensor,
    tile: int,
) -> Tensor:
    """Return what each sampled pixel shows, a key of `_COLORS`, `[rows, columns]`."""
    row_blocks, row_of_block = torch.unique(rows // tile, return_inverse=True)
    classes = tile_classes(
        lowered, seqlen_q, block_mask, tile_rows=tile, tile_columns=tile, row_blocks=row_blocks
    )[0, 0, row_of_block][:, columns // tile].long()
    lts, lte, uts, ute = lowered[0, 0][:, columns]
    row = rows[:, None]
    hidden = ((row >= lts) & (row < lte)) | ((row >= uts) & (row < ute))
    if block_mask is not None:
        hidden |= block_mask[0, 0][rows[:, None] // 128, columns // 128] == 0
    partial = torch.where(hidden, _PARTIAL_HIDDEN, _PARTIAL_VISIBLE)
    return torch.where((classes == SKIP) | (classes == FULL), classes, partial)


def _title(
    mask: FlashMask, title: str | None, density: float, counts: TileCounts, tile: int
) -> str:
    """Return both lines of the title."""
    total = sum(counts)
    shares = ", ".join(
        f"{name} {count:,} ({count / total:.1%})"
        for name, count in zip(("skip", "full", "partial"), counts, strict=True)
    )
    first = title or f"{mask.seqlen_q:,} queries x {mask.seqlen_k:,} keys"
    return f"{first}\ndensity {density:.1%}; tiles {tile}x{tile}: {shares}"


def _draw(pixels: Tensor, mask: FlashMask, tile: int, title: str) -> Figure:
    """Draw pixels, tile lines, legend and titles."""
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    # A figure of its own, without pyplot: no global state, no window, no choice of a backend.
    aspect = min(2.0, max(0.5, mask.seqlen_q / mask.seqlen_k))
    width = 6.4
    figure = Figure(figsize=(width, 1.6 + (width - 1.1) * aspect), dpi=150, layout="constrained")
    axes: Any = figure.add_subplot()
    names = sorted(_COLORS)
    axes.imshow(
        pixels.numpy(),
        cmap=ListedColormap([_COLORS[name][0] for name in names]),
        norm=BoundaryNorm([name - 0.5 for name in [*names, len(names)]], len(names)),
        extent=(0, mask.seqlen_k, mask.seqlen_q, 0),
        interpolation="nearest",
        aspect="auto",
    )
    for size, line in ((mask.seqlen_k, axes.axvline), (mask.seqlen_q, axes.axhline)):
        if size <= tile * _TILE_LINES:
            for at in range(tile, size, tile):
                line(at, color="#ffffff", linewidth=0.6)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(length=2, labelsize=8)
    axes.set_title(title, fontsize=9.5, linespacing=1.5, pad=8)
    figure.legend(
        handles=[
            Patch(facecolor=color, edgecolor="#888888", linewidth=0.5, label=label)
            for color, label in _COLORS.values()
        ],
        loc="outside lower center",
        ncols=2,
        fontsize=8.5,
        frameon=False,
    )
    return figure
