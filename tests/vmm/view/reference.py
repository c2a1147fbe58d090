# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a recording holds after an event, found by walking it one event at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

from vmm.sim.trace import Trace

CREATE, SLEEP = 0, 4


@dataclass
class State:
    """Blocks by id, pages by address: what a reader of the file would note down on paper."""

    live: dict[int, int] = field(default_factory=dict)  # id -> bytes
    taken: dict[int, tuple[int, int]] = field(default_factory=dict)  # id -> address, bytes
    mapped: dict[int, tuple[int, int]] = field(default_factory=dict)  # address -> bytes, page
    held: dict[int, int] = field(default_factory=dict)  # page -> bytes
    tags: dict[int, int] = field(default_factory=dict)
    stacks: dict[int, int] = field(default_factory=dict)

    @property
    def live_bytes(self) -> int:
        return sum(self.live.values())

    @property
    def held_bytes(self) -> int:
        return sum(self.held.values())


def walk(trace: Trace, last: int | None = None) -> tuple[State, list[int], list[int]]:
    """The state after event `last` (the end), and live and held bytes after each event."""
    state, live, held = State(), [], []
    live_bytes = held_bytes = 0
    completes = bool((trace.op == ord("c")).any())
    aux = trace.extra["aux"]
    for event in range(len(trace) if last is None else last + 1):
        op, id = chr(trace.op[event]), int(trace.id[event])
        size, address = int(trace.bytes[event]), int(trace.extra["addr"][event])
        page, cause = int(aux[event]) & ((1 << 56) - 1), int(aux[event]) >> 56
        if op == "a":
            state.live[id], state.taken[id] = size, (address, size)
            state.tags[id] = int(trace.tag[event])
            state.stacks[id] = int(trace.extra["stack"][event])
            live_bytes += size
        elif op == "f":
            live_bytes -= state.live.pop(id)
            if not completes:
                del state.taken[id]
        elif op == "c":
            del state.taken[id]
        elif op == "M":
            state.mapped[address] = (size, page)
            held_bytes += 0 if page in state.held else size
            state.held[page] = size
        elif op == "U":
            del state.mapped[address]
            if cause in (CREATE, SLEEP):
                held_bytes -= state.held.pop(page)
        live.append(live_bytes)
        held.append(held_bytes)
    return state, live, held


def free_runs(state: State) -> list[int]:
    """Bytes of the free runs: the borders of all blocks and pages cut the addresses into pieces."""
    pages = {(address, address + size) for address, (size, _) in state.mapped.items()}
    blocks = {(address, address + size) for address, size in state.taken.values()}
    cuts = sorted({border for piece in pages | blocks for border in piece})
    change: dict[int, list[int]] = {cut: [0, 0] for cut in cuts}
    for kind, pieces in enumerate((pages, blocks)):
        for begin, end in pieces:
            change[begin][kind] += 1
            change[end][kind] -= 1
    runs, run, inside = [], 0, [0, 0]
    for cut, following in zip(cuts, [*cuts[1:], None], strict=True):
        inside = [inside[0] + change[cut][0], inside[1] + change[cut][1]]
        if following is not None and inside[0] and not inside[1]:
            run += following - cut
        elif run:
            runs.append(run)
            run = 0
    return runs
