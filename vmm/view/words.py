# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Sizes, times and curves as text."""

from __future__ import annotations

import numpy as np

from vmm.view.recording import Column

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_TIMES = ((10**9, "s"), (10**6, "ms"), (10**3, "us"), (1, "ns"))
_BARS = " ▁▂▃▄▅▆▇█"


def short_bytes(value: int) -> str:
    """``1.25 GiB``: three digits or so; below 1 KiB exactly."""
    scaled, unit = float(abs(value)), 0
    while scaled >= 1024 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    sign = "-" if value < 0 else ""
    if unit == 0:
        return f"{sign}{abs(value)} B"
    digits = 0 if scaled >= 100 else 1 if scaled >= 10 else 2
    return f"{sign}{scaled:.{digits}f} {_UNITS[unit]}"


def both_bytes(value: int) -> str:
    """``1.25 GiB (1,342,177,280 B)``."""
    return f"{short_bytes(value)} ({value:,} B)" if abs(value) >= 1024 else f"{value} B"


def duration(ns: int) -> str:
    """``1.25 ms``, six digits at most."""
    scale, unit = next((pair for pair in _TIMES if ns >= pair[0]), _TIMES[-1])
    return f"{ns / scale:.6g} {unit}"


def sparkline(curve: Column, most: int, width: int) -> str:
    """One letter per part of the curve, as high as the highest value in it."""
    if not len(curve) or most < 1:
        return ""
    parts = np.array_split(curve, min(width, len(curve)))
    heights = [int(part.max()) * (len(_BARS) - 1) / most for part in parts]
    return "".join(_BARS[max(round(height), height > 0)] for height in heights)
