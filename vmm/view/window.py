# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""A part of a recording, chosen before anything is drawn."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from vmm.errors import Invalid
from vmm.view.curves import held
from vmm.view.recording import Column, Recording

_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
_BOUND = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s)?")


def parse_range(text: str, recording: Recording) -> tuple[int, int]:
    """The events ``[begin, end)`` of ``A:B``.

    A and B are event numbers, or times since the first event with a unit (ns, us, ms, s); either
    may be left out. Raises `Invalid` for anything else, and for a range without events.
    """
    parts = text.split(":")
    if len(parts) != 2:
        raise Invalid(f"a range is A:B, event numbers or times such as 10ms:2s, not {text!r}")
    # What stood at the start has the time of the first event.
    begin = max(_bound(parts[0], recording, 0), recording.start_events)
    end = min(_bound(parts[1], recording, len(recording)), len(recording))
    if begin >= end:
        raise Invalid(f"range {text!r} holds none of the {len(recording)} events")
    return begin, end


def _bound(text: str, recording: Recording, default: int) -> int:
    if not text:
        return default
    match = _BOUND.fullmatch(text.strip())
    if match is None or (match[2] is None and "." in match[1]):
        raise Invalid(f"a bound of a range is an event number or a time like 1.5ms, not {text!r}")
    if match[2] is None:
        return int(match[1]) + recording.start_events
    time = float(match[1]) * _UNITS[match[2]]
    return int(np.searchsorted(recording.t_ns, time, side="left"))


def cut(recording: Recording, begin: int, end: int) -> Recording:
    """The events ``[begin, end)``. What stood at ``begin`` comes as events in front of them."""
    before = held(recording)[begin - 1] if begin else recording.held_before
    maps, map_rows = _rows(recording.maps, "death", begin, end)
    blocks, block_rows = _rows(recording.blocks, "done", begin, end)
    old_maps = np.flatnonzero((maps["birth"] >= 0) & (maps["birth"] < begin))
    old_blocks = np.flatnonzero(blocks["birth"] < begin)
    start = len(old_maps) + len(old_blocks)
    count = start + end - begin
    op = recording.op[begin:end]
    ref = recording.ref[begin:end].copy()
    of_block = np.isin(op, np.frombuffer(b"afcr", np.uint8)) & (ref >= 0)
    of_map = np.isin(op, np.frombuffer(b"MU", np.uint8)) & (ref >= 0)
    ref[of_block] = block_rows[ref[of_block]]
    ref[of_map] = map_rows[ref[of_map]]
    rest = ~np.isin(op, np.frombuffer(b"afcrMU", np.uint8))
    others = {name: values[ref[rest]] for name, values in recording.others.items()}
    ref[rest] = np.arange(int(rest.sum()))
    for table in (blocks, maps):
        for name in {"birth", "death", "done"} & table.keys():
            moved = table[name] - begin + start
            table[name] = np.where(table[name] >= end, count, moved)
    gone = blocks["death"] < start  # freed, but not yet given back
    maps["birth"][old_maps] = np.arange(len(old_maps))
    maps["held"][old_maps] = 0
    lost = recording.maps["birth"][np.flatnonzero(map_rows >= 0)] < 0
    maps["birth"][lost] = -1
    maps["held"][lost] = 0
    blocks["birth"][old_blocks] = len(old_maps) + np.arange(len(old_blocks))
    blocks["death"][gone] = blocks["birth"][gone]
    return replace(
        recording,
        t_ns=np.concatenate([np.full(start, recording.t_ns[begin]), recording.t_ns[begin:end]]),
        op=np.concatenate(
            [np.repeat(np.frombuffer(b"Ma", np.uint8), [len(old_maps), len(old_blocks)]), op]
        ),
        ref=np.concatenate([old_maps, old_blocks, ref]),
        blocks=blocks,
        maps=maps,
        others=others,
        held_before=int(before),
        first_event=begin - recording.start_events,
        start_events=start,
    )


def _rows(
    table: dict[str, Column], last: str, begin: int, end: int
) -> tuple[dict[str, Column], Column]:
    """The rows that matter in ``[begin, end)``, and the new number of each row, or -1."""
    keep = (table["birth"] < end) & (table[last] >= begin)
    number = np.where(keep, np.cumsum(keep) - 1, -1)
    return {name: values[keep] for name, values in table.items()}, number
