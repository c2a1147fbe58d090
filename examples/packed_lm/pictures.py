# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pictures of a run: the mask, the loss, the speeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

import flashmask
from packed_lm.attention import TITLES
from packed_lm.compare import Row, ratio
from packed_lm.data import Packed

# The blue and the orange of flashmask.plot, and gray.
_OURS, _MARK, _PEER, _INK = "#2b6ca3", "#d9822b", "#b4b8bd", "#333333"


def draw_mask(packed: Packed, path: Path) -> None:
    mask = flashmask.masks.causal_document(packed.lengths)
    count = len(packed.lengths)
    flashmask.plot(mask, path=path, title=f"{count} documents in {mask.seqlen_q:,} bytes, causal")


def draw_loss(losses: Sequence[float], unigram: float, held_out: float, path: Path) -> None:
    figure = Figure(figsize=(6.4, 3.8), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    steps = len(losses)
    axes.plot(range(1, steps + 1), losses, color=_OURS, linewidth=0.8, alpha=0.35)
    axes.plot(range(1, steps + 1), _smooth(losses), color=_OURS, linewidth=1.6)
    axes.axhline(unigram, color=_MARK, linewidth=1, linestyle="--")
    axes.annotate(
        f"unigram entropy {unigram:.2f}",
        (1, unigram),
        xycoords=("axes fraction", "data"),
        xytext=(-4, 4),
        textcoords="offset points",
        ha="right",
        color=_MARK,
    )
    axes.plot([steps], [held_out], "o", color=_INK, markersize=5, clip_on=False, zorder=3)
    axes.annotate(
        f"held-out documents {held_out:.2f}",
        (steps, held_out),
        xytext=(-4, -44),
        textcoords="offset points",
        ha="right",
        color=_INK,
        arrowprops={"arrowstyle": "-", "color": _INK, "linewidth": 0.6},
    )
    axes.set_ylim(0, max(losses) * 1.05)
    axes.set_xlim(0, steps)
    axes.set_xlabel("training step")
    axes.set_ylabel("loss, nats per byte")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _smooth(losses: Sequence[float], width: int = 15) -> list[float]:
    """Return the mean of the last losses at every step, of fewer at the beginning."""
    spans = (losses[max(0, at - min(width, at // 2)) : at + 1] for at in range(len(losses)))
    return [sum(span) / len(span) for span in spans]


def draw_speeds(rows: Sequence[Row], seq_len: int, path: Path) -> None:
    panels = {
        "step": "training step of the whole model",
        "both": "attention of one layer, forward + backward",
        "forward": "attention of one layer, forward",
    }
    shown = {field: [row for row in rows if getattr(row, field) is not None] for field in panels}
    figure = Figure(figsize=(7.2, 5.6), dpi=150, layout="constrained")
    all_axes = figure.subplots(
        len(panels), height_ratios=[len(some) + 0.8 for some in shown.values()]
    )
    for axes, (field, title) in zip(all_axes, panels.items(), strict=True):
        some = shown[field]
        values = [getattr(row, field) for row in some]
        colors = [_OURS if row.kind == "flashmask" else _PEER for row in some]
        axes.barh(range(len(some)), values, color=colors, height=0.66)
        for at, (row, value) in enumerate(zip(some, values, strict=True)):
            times = "" if row.kind == "flashmask" else f"   {ratio(rows, row.kind, field):.1f}x"
            axes.text(value, at, f" {value:,.0f} ms{times}", va="center", fontsize=9, color=_INK)
        axes.set_yticks(range(len(some)), [TITLES[row.kind] for row in some], fontsize=9)
        axes.set_xlim(0, max(values) * 1.22)
        axes.set_xticks([])
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(f"{seq_len:,} bytes in packed documents, bfloat16: less is better", fontsize=10)
    figure.savefig(path)
