# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The public functions to see memory.

Each takes ``allocator`` (None: the one that this process has enabled) and, where one device is
meant, ``device``: None for device 0, a number, a text such as ``"cuda:1"``, or a `torch.device`.
They raise `vmm.errors.Invalid` if there is no allocator, or no such device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid
from vmm.observe import convert, listing, recorder, torch_pickle, torch_stats
from vmm.observe.events import no_events
from vmm.observe.listing import BlockEntry, PageEntry, TagEntry
from vmm.observe.measures import Fragmentation, measure
from vmm.observe.paddle_names import MemoryAnalysisTool
from vmm.observe.recorder import Recorder
from vmm.observe.recording import Recording
from vmm.observe.regions import Region
from vmm.observe.stacks import STACKS
from vmm.observe.state import FREE_MAPPED, FREE_UNMAPPED, State, read_state, read_states
from vmm.observe.summary_tables import summary_text
from vmm.observe.target import device_index, resolve

if TYPE_CHECKING:
    from vmm.allocator import Allocator

__all__ = [
    "Fragmentation",
    "MemoryAnalysisTool",
    "Recorder",
    "Recording",
    "Region",
    "blocks",
    "fragmentation",
    "free_blocks",
    "memory_stats",
    "page_map",
    "record",
    "region",
    "snapshot",
    "summary",
    "top",
]


def record(
    max_entries: int = 1_000_000,
    stacks: str = "none",
    min_size: int = 0,
    spool: str | os.PathLike[str] | None = None,
    *,
    allocator: Allocator | None = None,
) -> Recorder:
    """A recorder of everything that the allocator does.

    Use it as a context manager, or call ``start()`` and ``stop()``; the result is a `Recording`, in
    ``recorder.recording`` as well. ``peek()`` gives one while it runs.

    Args:
        max_entries: the ring holds this many events of 48 bytes. ``drain()`` empties it, and so do
            regions. When it is full the oldest are forgotten, and the recording begins after them;
            ``recording.lost`` counts what is not in it.
        stacks: ``"python"`` notes the Python stack of every allocation without the frames of torch,
            ``"all"`` with them, ``"none"`` no stack. Native frames are not among them.
        min_size: allocations that ask for fewer bytes are left out, and so are their frees.
        spool: a new or empty folder that ``drain()`` writes to; events leave memory then.
            `Recording.from_spool` reads what a process that died has left there.

    Raises:
        Invalid: an argument breaks its rule; at ``start``, a recording of the allocator runs.
    """
    return Recorder(max_entries, stacks, min_size, spool, allocator)


def region(
    name: str,
    *,
    threads: str = "all",
    allocator: Allocator | None = None,
    device: object = None,
) -> Region:
    """Counts allocations, frees, the peak, survivors, stolen pages and waits of a block of code.

    ``with vmm.region("forward") as r: ...``, then ``r.counts``, ``r.survivors``, ``r.table()``; or
    ``@vmm.region("forward")``. Regions nest; allocations of the thread get the names with slashes
    between as their tag. What is counted comes from the recording if one runs (and all its events
    that the ring forgot are missing), else from statistics and lists of blocks at both ends.

    Args:
        threads: ``"all"`` counts what every thread does to the device meanwhile (the backward pass
            runs in threads of its own), ``"own"`` only this thread; that needs a recording.

    Raises:
        Invalid: an argument breaks its rule, or ``"own"`` without a recording.
    """
    return Region(name, threads=threads, allocator=allocator, device=device)


def summary(device: object = None, *, allocator: Allocator | None = None) -> str:
    """The state of a device as six tables of text.

    Totals, blocks by arena and blocks by size follow ``memory_summary`` of Paddle 3.3; then come
    pages, fragmentation (`fragmentation`) and the tags that hold the most.
    """
    return summary_text(_state(device, allocator))


def fragmentation(device: object = None, *, allocator: Allocator | None = None) -> Fragmentation:
    """What share of memory is lost to what; see `vmm.observe.measures.Fragmentation`."""
    return measure(_state(device, allocator))


def blocks(device: object = None, *, allocator: Allocator | None = None) -> list[BlockEntry]:
    """Every block in address order, the free ones too; sizes and addresses in bytes.

    A block has an address, size, requested bytes, state (active, pending, free: with pages behind
    it, unmapped: only addresses), stream, arena, pool, tag and stack.
    """
    return listing.block_entries(_state(device, allocator))


def free_blocks(
    device: object = None, *, unmapped: bool = False, allocator: Allocator | None = None
) -> list[BlockEntry]:
    """The free blocks in address order: those with pages behind them; with `unmapped`, the others
    too."""
    states = (FREE_MAPPED, FREE_UNMAPPED) if unmapped else (FREE_MAPPED,)
    return listing.block_entries(_state(device, allocator), states)


def page_map(device: object = None, *, allocator: Allocator | None = None) -> list[PageEntry]:
    """Every virtual page in use, in address order.

    A page has an address, the number of its physical page (-1: none), a state (mapped, stale: an
    old mapping that still exists, empty), arena, live bytes and pins by reason.
    """
    return listing.page_entries(_state(device, allocator))


def top(
    n: int = 10, device: object = None, *, allocator: Allocator | None = None
) -> list[TagEntry]:
    """The `n` tags with the most live bytes: (tag, bytes, blocks), the largest first.

    Raises `vmm.errors.Invalid` if `n` is not a whole number from 1.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise Invalid(f"n: must be a whole number from 1, but is {n!r}")
    return listing.top_tags(_state(device, allocator), n)


def memory_stats(device: object = None, *, allocator: Allocator | None = None) -> dict[str, int]:
    """Counts and bytes under all the names of `torch.cuda.memory_stats`, in order.

    A segment is a physical page. There is no bound for splitting blocks: ``max_split_size`` is -1.
    """
    return torch_stats.flat(resolve(allocator).stats(device=device_index(device, allocator)))


def snapshot(*, allocator: Allocator | None = None) -> dict[str, Any]:
    """What is in memory, as `torch.cuda.memory._snapshot` would tell it: all devices.

    The dictionary has ``segments``, ``device_traces`` (the events so far if a recording runs, which
    goes on; else empty) and ``allocator_settings``. `vmm.observe.torch_pickle.write` makes a file
    of it for pytorch.org/memory_viz.
    """
    target = resolve(allocator)
    states = read_states(target)
    running = recorder.active(target)
    traces = dict(running.peek().traces) if running else {}
    for device, state in states.items():
        if device not in traces:
            traces[device] = convert.to_trace(
                no_events(), device=device, after=state, stacks=STACKS.table
            )
    return torch_pickle.snapshot_of(traces)


def _state(device: object, allocator: Allocator | None) -> State:
    return read_state(resolve(allocator), device_index(device, allocator))
