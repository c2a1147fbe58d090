# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``torch-snapshot-lite 1``: a torch snapshot as short JSON, without stacks and times.

    {"format": "torch-snapshot-lite 1",
     "segments_at_end": [{"addr", "size", "type", "stream",
                          "blocks": [[addr, size, requested, state]]}],
     "events": [[action, addr, size, stream]]}

A fifth element of an event, and a key ``pool`` of a segment, is the id of a private pool.
``allocator_settings`` are as torch has them.
"""

from __future__ import annotations

from typing import Any

from vmm.errors import FormatError
from vmm.sim.readers.fields import listed, table
from vmm.sim.readers.torch_snapshot import from_torch
from vmm.sim.snapshot import Snapshot

FORMAT = "torch-snapshot-lite 1"


def from_lite(data: Any, *, device: int | None = None, source: str = FORMAT) -> Snapshot:
    """The snapshot in the parsed JSON, of device 0. Raises FormatError naming what is wrong."""
    data = table(data, "the snapshot")
    if data.get("format", FORMAT) != FORMAT:
        raise FormatError(f"the format is {str(data['format'])[:60]!r}, not {FORMAT!r}")
    segments = [
        _segment(table(segment, f"segment {number}"))
        for number, segment in enumerate(listed(data.get("segments_at_end"), "segments_at_end"))
    ]
    events = [
        _event(number, listed(event, f"event {number}"))
        for number, event in enumerate(listed(data.get("events"), "events"))
    ]
    settings = data.get("allocator_settings", data.get("settings"))
    whole = {"segments": segments, "device_traces": [events], "allocator_settings": settings}
    return from_torch(whole, device=device, source=source)


def _segment(segment: dict[Any, Any]) -> dict[str, Any]:
    blocks = []
    for block in listed(segment.get("blocks"), "blocks of a segment"):
        if len(listed(block, "a block")) != 4:
            raise FormatError(f"a block has {len(block)} parts, not 4")
        blocks.append(dict(zip(("address", "size", "requested_size", "state"), block, strict=True)))
    return {
        "address": segment.get("addr"),
        "total_size": segment.get("size"),
        "segment_type": segment.get("type"),
        "stream": segment.get("stream"),
        "segment_pool_id": segment.get("pool"),
        "is_expandable": segment.get("is_expandable"),
        "blocks": blocks,
    }


def _event(number: int, event: list[Any] | tuple[Any, ...]) -> dict[str, Any]:
    if not 3 <= len(event) <= 5:
        raise FormatError(f"event {number} has {len(event)} parts, not 4")
    return dict(zip(("action", "addr", "size", "stream", "pool_id"), event, strict=False))
