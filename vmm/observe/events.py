# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The events of the core's ring, as numpy sees them, and the letters they have in a trace."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmm import native

EVENT = np.dtype(native.Event)

ALLOC = 1
FREE_REQUESTED = 2
FREE_COMPLETED = 3
MAP = 4
UNMAP = 5
OOM = 6
WAIT = 7
SYNC = 8
STEP = 9
RECORD_STREAM = 10
SLEEP = 11
WAKE = 12
NOTE = 13

# Letter of each action in a trace (vmm.sim.trace.OPS).
LETTERS = {
    ALLOC: "a",
    FREE_REQUESTED: "f",
    FREE_COMPLETED: "c",
    MAP: "M",
    UNMAP: "U",
    OOM: "o",
    WAIT: "w",
    SYNC: "y",
    STEP: "m",
    RECORD_STREAM: "r",
    SLEEP: "z",
    WAKE: "Z",
    NOTE: "n",
}

# The upper byte of `aux` of a map or unmap says why; the rest is the number of the physical page.
CAUSE_SHIFT = 56
PAGE_MASK = (1 << CAUSE_SHIFT) - 1
CAUSE_CREATE, CAUSE_POOL, CAUSE_MOVE, CAUSE_ALIAS, CAUSE_SLEEP = range(5)
CAUSES = ("create", "pool", "move", "alias", "sleep")

Events = NDArray[np.void]


def no_events() -> Events:
    """An empty array of events."""
    return np.zeros(0, dtype=EVENT)
