# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What of a recording goes into the page: columns and facts."""

from __future__ import annotations

from typing import Any

import numpy as np

from vmm.view.pack import pack
from vmm.view.recording import CAUSES, OTHER_COLUMNS, Column, Recording

# The page finds the ends of blocks by itself, from the events.
_BLOCK_COLUMNS = ("size", "requested", "addr", "stream", "pool", "tag", "stack", "thread")
_MAP_COLUMNS = (
    *("birth", "death", "addr", "bytes", "page", "cause", "end_cause", "held", "released"),
    "joins",
)
_KINDS = ("large blocks", "small blocks")
_PINS = ("ipc", "registered", "graph", "user")


def contents(recording: Recording) -> bytes:
    """The packed form that `page/recording.js` reads."""
    columns: dict[str, Any] = {
        "t_ns": recording.t_ns,
        "op": recording.op,
        "ref": _short_refs(recording),
    }
    tables = (
        ("blocks", recording.blocks, _BLOCK_COLUMNS),
        ("maps", recording.maps, _MAP_COLUMNS),
        ("others", recording.others, OTHER_COLUMNS),
    )
    for table, values, names in tables:
        columns |= {f"{table}.{name}": values[name] for name in names}
    blocks = recording.blocks
    columns["early"] = np.flatnonzero(blocks["death"] == blocks["birth"])
    return pack(columns, _facts(recording))


def _short_refs(recording: Recording) -> Column:
    """Small numbers: at f, c, r how many allocs ago (0: unknown); at M, U the row; else 0."""
    op, ref = recording.op, recording.ref
    allocs = np.cumsum(op == ord("a"))
    ends = np.isin(op, np.frombuffer(b"fcr", np.uint8))
    short = np.where(ends & (ref >= 0), allocs - ref, 0)
    return np.where(np.isin(op, np.frombuffer(b"MU", np.uint8)), ref, short)


def _facts(recording: Recording) -> dict[str, Any]:
    frames: dict[tuple[str, int, str], int] = {}
    stacks = [
        [frames.setdefault(frame, len(frames)) for frame in stack] for stack in recording.stacks
    ]
    header = recording.header
    capacity = header.get("device_capacity")
    return {
        "name": recording.name,
        "kind": recording.kind,
        "source": str(header.get("source", "")),
        "capacity": capacity if isinstance(capacity, int) else 0,
        "page_size": recording.page_size,
        "held_before": recording.held_before,
        "first_event": recording.first_event,
        "start_events": recording.start_events,
        "file_events": recording.file_events,
        "timed": recording.timed,
        "has_addresses": recording.has_addresses,
        "has_ranges": recording.has_ranges,
        "has_pages": recording.has_pages,
        "tags": recording.tags,
        "streams": recording.streams,
        "pools": [str(pool) for pool in _listed(header.get("pools"))],
        "frames": [list(frame) for frame in frames],
        "stacks": stacks,
        "causes": list(CAUSES),
        "arenas": _arenas(header),
        "pins": _pins(header),
        "notes": recording.notes,
    }


def _arenas(header: dict[str, Any]) -> list[dict[str, Any]]:
    """``arenas`` of the header: rows with the fields of vmm_arena_info, by name."""
    return [
        {
            "base": row["base"],
            "bytes": row["reserved"],
            "name": f"{row.get('pool_name', '')}, {_KINDS[bool(row.get('small'))]}",
        }
        for row in _listed(header.get("arenas"))
        if isinstance(row, dict) and all(isinstance(row.get(k), int) for k in ("base", "reserved"))
    ]


def _pins(header: dict[str, Any]) -> dict[str, dict[str, int]]:
    """``slots`` of the header, rows with the fields of vmm_slot_info: pinned pages at the end."""
    pins: dict[str, dict[str, int]] = {}
    for row in _listed(header.get("slots")):
        if isinstance(row, dict) and isinstance(row.get("page"), int) and row["page"] >= 0:
            counts = dict(zip(_PINS, _listed(row.get("pins")), strict=False))
            if any(counts.values()):
                pins[str(row["page"])] = {name: int(n) for name, n in counts.items() if n}
    return pins


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []
