# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pairs the events of a trace: each alloc with its free, each mapping with its end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vmm.sim.trace import Trace
from vmm.view.recording import BLOCK_COLUMNS, CREATE, MAP_COLUMNS, SLEEP, Column, empty

_CAUSE_SHIFT = 56
_PAGE_MASK = (1 << _CAUSE_SHIFT) - 1


def pair_blocks(trace: Trace, ref: Column, granule: int) -> dict[str, Column]:
    """The blocks in the order of their allocs; fills ``ref`` at the ops a, f, c and r.

    A block takes a multiple of ``granule`` bytes.
    """
    count = len(trace)
    born = np.flatnonzero(trace.op == ord("a"))
    ids = trace.id[born]
    order = np.argsort(ids, kind="stable")
    ref[born] = np.arange(len(born))
    for letter in "fcr":
        events = np.flatnonzero(trace.op == ord(letter))
        ref[events] = _rows_of(trace.id[events], ids, order)
    blocks = empty(BLOCK_COLUMNS)
    blocks["birth"] = born.astype(np.int64)
    blocks["death"] = _ends(trace, ref, "f", np.full(len(born), count, dtype=np.int64))
    blocks["done"] = _ends(trace, ref, "c", blocks["death"].copy())
    bytes_ = trace.bytes[born]
    requested = trace.extra.get("requested", trace.extra.get("aux"))
    asked = bytes_ if requested is None else requested[born]
    blocks["requested"] = np.where((asked > 0) & (asked <= bytes_), asked, bytes_)
    blocks["size"] = -(-bytes_ // granule) * granule
    for name in ("stream", "pool", "tag"):
        blocks[name] = getattr(trace, name)[born].astype(np.int64)
    for name in ("addr", "stack", "thread"):
        column = trace.extra.get(name)
        blocks[name] = (
            np.zeros(len(born), np.int64) if column is None else column[born].astype(np.int64)
        )
    return blocks


def _rows_of(wanted: Column, ids: Column, order: NDArray[np.intp]) -> Column:
    """The rows with these ids, -1 for an id without alloc."""
    if not len(ids):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)
    rows = order[place].astype(np.int64)
    return np.where(ids[rows] == wanted, rows, -1)


def _ends(trace: Trace, ref: Column, letter: str, ends: Column) -> Column:
    events = np.flatnonzero((trace.op == ord(letter)) & (ref >= 0))
    ends[ref[events]] = events
    return ends


def pair_maps(
    trace: Trace, ref: Column, joins: NDArray[np.bool_] | None = None
) -> dict[str, Column]:
    """The mapped ranges; fills ``ref`` at the ops M and U.

    A range whose mapping was not seen has birth -1. ``joins`` is per event.
    """
    count = len(trace)
    events = np.flatnonzero((trace.op == ord("M")) | (trace.op == ord("U")))
    maps = empty(MAP_COLUMNS)
    if not len(events):
        return maps
    zero = np.zeros(count, dtype=np.int64)
    addr = trace.extra.get("addr", zero)
    aux = trace.extra.get("aux", np.full(count, -1, dtype=np.int64))
    sort = events[np.argsort(addr[events], kind="stable")]
    mapping = trace.op[sort] == ord("M")
    same = np.zeros(len(sort), dtype=bool)  # has the address of the one before it
    same[1:] = addr[sort[1:]] == addr[sort[:-1]]
    starts = mapping.copy()
    after_map = np.zeros(len(sort), dtype=bool)
    after_map[1:] = same[1:] & mapping[:-1]
    unseen = ~mapping & ~after_map  # the end of something from before the first event
    rows = np.cumsum(starts | unseen) - 1
    ref[sort] = rows
    first = np.flatnonzero(starts | unseen)
    maps["birth"] = np.where(unseen[first], -1, sort[first])
    end = np.full(len(first), count, dtype=np.int64)
    end[unseen[first]] = sort[first[unseen[first]]]
    follows = np.flatnonzero(after_map)  # an unmap, or a mapping whose unmap was lost
    end[rows[follows - 1]] = sort[follows]
    maps["death"] = end
    maps["addr"] = addr[sort[first]].astype(np.int64)
    maps["bytes"] = trace.bytes[sort[first]].astype(np.int64)
    numbers = aux[sort]
    known = numbers >= 0
    maps["page"] = np.where(known, numbers & _PAGE_MASK, -1)[first]
    causes = np.where(known, numbers >> _CAUSE_SHIFT, CREATE)
    maps["cause"] = causes[first]
    ended = np.flatnonzero(after_map & ~mapping)
    maps["end_cause"] = np.full(len(first), CREATE, dtype=np.int64)
    maps["end_cause"][rows[ended]] = causes[ended]
    maps["end_cause"][unseen[first]] = causes[first[unseen[first]]]
    maps["joins"] = (
        np.ones(len(first), np.int64) if joins is None else joins[sort[first]].astype(np.int64)
    )
    maps["held"], maps["released"] = _held(maps, count)
    return maps


def _held(maps: dict[str, Column], count: int) -> tuple[Column, Column]:
    """How the physical bytes change at the start and the end of each mapping.

    A page is held from its first mapping until a mapping ends because the page was given back; in
    between it may be mapped at other addresses, at several, or lie in the pool. A page whose first
    event is an end was held before; that counts at the birth of the mapping that was not seen.
    """
    rows = len(maps["birth"])
    held, released = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.int64)
    gives_back = np.isin(maps["end_cause"], (CREATE, SLEEP))
    # Two happenings per mapping: (page, event) order, an end before a start at the same event.
    page = np.where(maps["page"] >= 0, maps["page"], -1 - np.arange(rows))
    page = np.concatenate([page, page])
    event = np.concatenate([maps["birth"], maps["death"]])
    is_start = np.repeat([True, False], rows)
    row = np.concatenate([np.arange(rows), np.arange(rows)])
    seen = (event >= 0) & (event < count)
    page, event, is_start, row = page[seen], event[seen], is_start[seen], row[seen]
    order = np.lexsort((is_start, event, page))
    page, is_start, row = page[order], is_start[order], row[order]
    after = is_start | ~gives_back[row]
    first = np.ones(len(order), dtype=bool)  # of its page
    first[1:] = page[1:] != page[:-1]
    before = np.where(first, ~is_start, np.roll(after, 1))
    change = (after.astype(np.int64) - before.astype(np.int64)) * maps["bytes"][row]
    held[row[is_start]] = change[is_start]
    released[row[~is_start]] = change[~is_start]
    old = row[first & ~is_start]
    held[old] += maps["bytes"][old]
    return held, released
