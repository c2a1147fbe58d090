# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What happened between the beginning and the end of a region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from vmm.observe import events as ev
from vmm.observe.events import Events
from vmm.observe.stacks import Frame
from vmm.observe.state import ACTIVE, State


class Survivor(NamedTuple):
    """A block that was born in a region and is live at its end; sizes in bytes, `stack` of
    (file, line, function), innermost first, if one was recorded."""

    address: int
    size: int
    requested: int
    tag: str
    stack: tuple[Frame, ...]


@dataclass(frozen=True)
class Counts:
    """Numbers of a region; sizes are bytes of blocks.

    ``peak`` is the highest live bytes of the device inside the region. Without a recording it is
    known only if it was the highest ever; else ``peak_exact`` is false and ``peak`` the higher of
    both ends. ``steals`` counts pages that were moved or aliased, ``lost`` events that the ring had
    no room for (the numbers lack them).
    """

    allocs: int
    frees: int
    alloc_bytes: int
    freed_bytes: int
    live_before: int
    live_after: int
    peak: int
    peak_exact: bool
    steals: int
    waits: int
    syncs: int
    ooms: int
    lost: int = 0

    @property
    def net(self) -> int:
        """Bytes allocated minus bytes freed."""
        return self.alloc_bytes - self.freed_bytes


def from_events(
    events: Events, *, device: int, live_before: int, thread: int | None = None, lost: int = 0
) -> Counts:
    """The counts of the events of a device, of one thread only if `thread` is its number."""
    events = events[events["device"] == device]
    if thread is not None:
        events = events[events["thread"] == thread]
    action, size = events["action"], events["size"].astype(np.int64)
    born, freed = action == ev.ALLOC, action == ev.FREE_REQUESTED
    live = live_before + np.cumsum(np.where(born, size, 0) - np.where(freed, size, 0))
    causes = (events["aux"] >> np.uint64(ev.CAUSE_SHIFT)).astype(np.int64)
    stolen = (action == ev.MAP) & np.isin(causes, (ev.CAUSE_MOVE, ev.CAUSE_ALIAS))
    return Counts(
        allocs=int(born.sum()),
        frees=int(freed.sum()),
        alloc_bytes=int(size[born].sum()),
        freed_bytes=int(size[freed].sum()),
        live_before=live_before,
        live_after=int(live[-1]) if len(live) else live_before,
        peak=int(live.max(initial=live_before)),
        peak_exact=lost == 0,
        steals=int(stolen.sum()),
        waits=int((action == ev.WAIT).sum()),
        syncs=int((action == ev.SYNC).sum()),
        ooms=int((action == ev.OOM).sum()),
        lost=lost,
    )


def survivors_of_events(
    events: Events,
    *,
    device: int,
    thread: int | None,
    tag_text: Callable[[int], str],
    stacks: Sequence[tuple[Frame, ...]],
) -> list[Survivor]:
    """Blocks that were born and not freed, in the order of their birth."""
    events = events[events["device"] == device]
    events = events[np.isin(events["action"], (ev.ALLOC, ev.FREE_REQUESTED))]
    # The last event at an address says what is there.
    last = len(events) - 1 - np.unique(events["address"][::-1], return_index=True)[1]
    left = events[np.sort(last)]
    left = left[left["action"] == ev.ALLOC]
    if thread is not None:
        left = left[left["thread"] == thread]
    return [
        Survivor(address, size, asked, tag_text(tag), stacks[stack] if stack < len(stacks) else ())
        for address, size, asked, tag, stack in left[
            ["address", "size", "aux", "tag", "stack"]
        ].tolist()
    ]


def from_states(before: State, after: State) -> Counts:
    """The counts that the statistics at both ends tell."""

    def grown(name: str) -> int:
        return after.stats.get(name, 0) - before.stats.get(name, 0)

    live = [state.stats.get("allocated_bytes.all.current", 0) for state in (before, after)]
    highest = [state.stats.get("allocated_bytes.all.peak", 0) for state in (before, after)]
    exact = highest[1] > highest[0]
    return Counts(
        allocs=grown("allocation.all.allocated"),
        frees=grown("allocation.all.freed"),
        alloc_bytes=grown("allocated_bytes.all.allocated"),
        freed_bytes=grown("allocated_bytes.all.freed"),
        live_before=live[0],
        live_after=live[1],
        peak=highest[1] if exact else max(live),
        peak_exact=exact,
        steals=grown("steals.move") + grown("steals.alias"),
        waits=grown("waits"),
        syncs=grown("syncs"),
        ooms=grown("num_ooms"),
    )


def survivors_of_states(
    before: State, after: State, stacks: Sequence[tuple[Frame, ...]]
) -> list[Survivor]:
    """Blocks that are live now and were not. A block that was freed and made
    again with the same address, size, tag and stack looks as if it had stayed."""
    old = {row.address: row for row in before.blocks if row.state == ACTIVE}
    found = []
    for row in after.blocks:
        was = old.get(row.address)
        if row.state != ACTIVE or (
            was is not None
            and (was.size, was.requested, was.tag, was.stack)
            == (row.size, row.requested, row.tag, row.stack)
        ):
            continue
        stack = stacks[row.stack] if row.stack < len(stacks) else ()
        found.append(Survivor(row.address, row.size, row.requested, row.tag, stack))
    return found
