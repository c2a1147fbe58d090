# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Runs of free memory at a moment, and their histogram in the ranges that Paddle prints."""

from __future__ import annotations

import numpy as np

from vmm.view.recording import Column, Recording

_M, _G = 1 << 20, 1 << 30
# Upper bounds of all ranges but the last, as in paddle.device.cuda's memory summary.
BOUNDS = (
    *(_M, 10 * _M, 50 * _M, 100 * _M, 200 * _M, 400 * _M, 600 * _M, 800 * _M),
    *(_G, 2 * _G, 3 * _G),
)
LABELS = (
    "<1M",
    "1-10M",
    "10-50M",
    "50-100M",
    "100-200M",
    "200-400M",
    "400-600M",
    "600-800M",
    "800M-1G",
    "1-2G",
    "2-3G",
    ">=3G",
)


def free_runs(recording: Recording, event: int) -> Column:
    """Bytes of each maximal range that is mapped, and in no block, after an event; by address.

    A block counts until its address is given back, so memory that other streams may still use is
    not free. A run does not cross the border of a segment of torch.
    """
    maps, blocks = recording.maps, recording.blocks
    rows = np.flatnonzero((maps["birth"] <= event) & (maps["death"] > event) & (maps["addr"] > 0))
    rows = rows[np.argsort(maps["addr"][rows], kind="stable")]
    taken = np.flatnonzero((blocks["birth"] <= event) & (blocks["done"] > event))
    taken = taken[np.argsort(blocks["addr"][taken], kind="stable")]
    places = zip(blocks["addr"][taken].tolist(), blocks["size"][taken].tolist(), strict=True)
    runs: list[int] = []
    block = next(places, None)
    run, place = 0, -1  # the free run so far, and where it ends
    columns = (maps[name][rows].tolist() for name in ("addr", "bytes", "joins"))
    for address, size, joins in zip(*columns, strict=True):
        if run and not (joins and address == place):
            runs.append(run)
            run = 0
        place, end = max(place, address), address + size
        while block is not None and block[0] < end:
            begin, block_end = block[0], block[0] + block[1]
            if block_end > place:
                if begin > place:
                    run += begin - place
                if run:
                    runs.append(run)
                    run = 0
                place = min(block_end, end)
            if block_end > end:
                break
            block = next(places, None)
        run += max(end - place, 0)
        place = max(place, end)
    if run:
        runs.append(run)
    return np.array(runs, dtype=np.int64)


def histogram(runs: Column) -> Column:
    """int64[12]: how many runs are in each of the ranges of `LABELS`."""
    return np.bincount(np.searchsorted(BOUNDS, runs, side="right"), minlength=len(LABELS))
