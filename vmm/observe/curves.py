# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a trace amounts to after each of its events."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.sim.trace import Trace

Curve = NDArray[np.int64]


@dataclass(eq=False)
class Curves:
    """int64[n] each, bytes unless said otherwise, after each event.

    ``allocated``: blocks that are live; ``active``: those and the freed ones that somebody may
    still use; ``requested``: of the live ones, what was asked for; ``mapped``: pages at their
    addresses; ``blocks``: number of live blocks.
    """

    allocated: Curve
    active: Curve
    requested: Curve
    mapped: Curve
    blocks: Curve


def curves(trace: Trace) -> Curves:
    """The curves of a trace. Without a column ``requested``, that is the size; without ``c`` rows a
    block is active until its free."""
    count = len(trace)
    allocs = np.flatnonzero(trace.op == ord("a"))
    sizes = trace.bytes[allocs]
    asked = trace.extra["requested"][allocs] if "requested" in trace.extra else sizes
    freed = trace.frees()
    completed = _completions(trace, allocs, freed)

    def curve(values: NDArray[Any], ends: NDArray[Any]) -> Curve:
        change = np.zeros(count + 1, dtype=np.int64)
        change[allocs] = values
        np.subtract.at(change, ends, values)
        return np.cumsum(change[:-1])

    pages = np.where(trace.op == ord("M"), trace.bytes, 0)
    pages = np.where(trace.op == ord("U"), -trace.bytes, pages)
    return Curves(
        allocated=curve(sizes, freed),
        active=curve(sizes, completed),
        requested=curve(asked, freed),
        mapped=np.cumsum(pages),
        blocks=curve(np.ones_like(sizes), freed),
    )


def _completions(trace: Trace, allocs: NDArray[Any], freed: NDArray[Any]) -> NDArray[Any]:
    done = np.flatnonzero((trace.op == ord("c")) & (trace.id >= 0))
    if not done.size:
        return freed
    result = np.full(len(allocs), len(trace), dtype=np.int64)
    order = np.argsort(trace.id[allocs], kind="stable")
    result[order[np.searchsorted(trace.id[allocs][order], trace.id[done])]] = done
    return result
