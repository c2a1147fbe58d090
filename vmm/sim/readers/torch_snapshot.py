# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What ``torch.cuda.memory._snapshot()`` returns, from its pickle or written as JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vmm.errors import FormatError
from vmm.sim.readers.fields import chosen, handle, listed, short, table, whole
from vmm.sim.snapshot import ACTIONS, OTHER, STATES, Snapshot, check_segments

# A short file can name the same list of blocks, or the same event, very often.
MAX_EVENTS = 50_000_000
MAX_BLOCKS = 5_000_000

# The distance of events in ns, where the file gives them no times.
EVENT_NS = 10_000

_CODES = {name: code for code, name in enumerate(ACTIONS)}


def from_torch(data: Any, *, device: int | None = None, source: str = "torch snapshot") -> Snapshot:
    """The snapshot of one device, from the dict or, as old versions have it, the list of segments.

    Without `device` only one may have segments or events. Raises FormatError naming what is wrong.
    """
    if isinstance(data, list):
        data = {"segments": data}
    data = table(data, "the snapshot")
    segments = listed(data.get("segments"), "segments of the snapshot")
    traces = listed(data.get("device_traces") or [], "device_traces of the snapshot")
    have = {number for number, events in enumerate(traces) if events}
    have |= {
        whole(table(segment, f"segment {number}").get("device"), "a segment's device", 0)
        for number, segment in enumerate(segments)
    }
    number = chosen(have, device)
    reader = _Reader()
    own = [
        reader.segment(segment)
        for segment in segments
        if whole(segment.get("device"), "a segment's device", 0) == number
    ]
    events = listed(traces[number] if number < len(traces) else [], "a device's trace")
    return reader.finish(own, events, number, source, data.get("allocator_settings"))


class _Reader:
    """Collects the tables of stacks, streams, pools and tags while it reads."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[tuple[str, int, str], ...], int] = {(): 0}
        self.by_identity: dict[tuple[int, ...], int] = {}  # identities of frames -> number
        self.streams: dict[int, int] = {0: 0}
        self.pools: dict[tuple[int, int], int] = {(0, 0): 0}
        self.tags: dict[str, int] = {"": 0}
        self.others = self.blocks = 0

    def segment(self, data: dict[Any, Any]) -> dict[str, Any]:
        address = whole(data.get("address"), "a segment's address")
        what = f"of the segment at {address:#x}"
        kind = data.get("segment_type")
        if kind not in ("small", "large"):
            raise FormatError(f"segment_type {what} is {short(kind)}, neither 'small' nor 'large'")
        blocks, place = [], address
        rows = listed(data.get("blocks"), f"blocks {what}")
        self.blocks += len(rows)
        if self.blocks > MAX_BLOCKS:
            raise FormatError(f"there are more than {MAX_BLOCKS} blocks")
        for block in rows:
            blocks.append(self.block(table(block, f"a block {what}"), place, what))
            place = blocks[-1]["address"] + blocks[-1]["size"]
        return {
            "address": address,
            "total_size": whole(data.get("total_size"), f"total_size {what}"),
            "stream": self.stream(data.get("stream"), f"stream {what}"),
            "pool": self.pool(data.get("segment_pool_id"), f"segment_pool_id {what}"),
            "segment_type": kind,
            "is_expandable": bool(data.get("is_expandable")),
            "blocks": blocks,
        }

    def block(self, data: dict[Any, Any], place: int, what: str) -> dict[str, Any]:
        state = data.get("state")
        if not isinstance(state, str) or state not in STATES:
            raise FormatError(f"the state of a block {what} is {short(state)}")
        size = whole(data.get("size"), f"the size of a block {what}")
        # Before 2.0 a block had no address, and its stack lay in a history.
        history = data.get("history")
        last = history[0] if isinstance(history, list) and history else {}
        last = last if isinstance(last, dict) else {}
        requested = data.get("requested_size", last.get("real_size"))
        return {
            "address": whole(data.get("address"), f"the address of a block {what}", place),
            "size": size,
            "requested_size": whole(requested, f"requested_size of a block {what}", size),
            "state": STATES[state],
            "stack": self.stack(data.get("frames") or last.get("frames")),
        }

    def stream(self, value: Any, what: str) -> int:
        return self.streams.setdefault(handle(value, what), len(self.streams))

    def pool(self, value: Any, what: str) -> int:
        if value is None:
            return 0
        pair = tuple(whole(part, what) for part in listed(value, what))
        if len(pair) != 2:
            raise FormatError(f"{what} has {len(pair)} parts, not 2")
        return self.pools.setdefault(pair, len(self.pools))

    def stack(self, frames: Any) -> int:
        if not frames:
            return 0
        # The same frames occur in list after list, mostly as the same objects.
        key = tuple(map(id, listed(frames, "frames")))
        known = self.by_identity.get(key)
        if known is None:
            stack = tuple(_frame(frame) for frame in frames)
            known = self.stacks.setdefault(stack, len(self.stacks))
            self.by_identity[key] = known
        return known

    def tag(self, event: dict[Any, Any]) -> int:
        text = event.get("user_metadata") or event.get("category")
        return self.tags.setdefault(text, len(self.tags)) if isinstance(text, str) else 0

    def event(self, number: int, event: Any) -> tuple[int, ...]:
        if not isinstance(event, dict):
            raise FormatError(f"event {number} is a {type(event).__name__}, not a table")
        name = event.get("action")
        code = _CODES.get(name, OTHER) if isinstance(name, str) else OTHER
        self.others += code == OTHER
        what = f"of event {number}"
        return (
            code,
            whole(event.get("addr", event.get("device_free")), f"addr {what}", 0),
            whole(event.get("size"), f"size {what}", 0),
            self.stream(event.get("stream"), f"stream {what}"),
            self.pool(event.get("pool_id"), f"pool_id {what}"),
            self.stack(event.get("frames")),
            self.tag(event),
            whole(event.get("time_us"), f"time_us {what}", 0),
        )

    def finish(
        self,
        segments: list[dict[str, Any]],
        events: list[Any] | tuple[Any, ...],
        device: int,
        source: str,
        settings: Any,
    ) -> Snapshot:
        segments.sort(key=lambda segment: segment["address"])
        check_segments(segments)
        if len(events) > MAX_EVENTS:
            raise FormatError(f"there are {len(events)} events; at most {MAX_EVENTS} are read")
        rows = (self.event(number, event) for number, event in enumerate(events))
        row = np.dtype((np.int64, 8))
        table_of: NDArray[np.int64] = np.fromiter(rows, dtype=row, count=len(events))
        times, timed = table_of[:, 7], bool(table_of[:, 7].any())
        if timed:
            if times.max() >= 1 << 53:
                raise FormatError(f"time_us of an event is {times.max()}; that is no time")
            # Events of several threads may be a little out of order.
            times = np.maximum.accumulate(times - times[0]) * 1000
        else:
            times = np.arange(len(events), dtype=np.int64) * EVENT_NS
        narrow = {
            name: table_of[:, at].astype(np.int32)
            for at, name in ((3, "stream"), (4, "pool"), (5, "stack"), (6, "tag"))
        }
        return Snapshot(
            source=source,
            device=device,
            segments=segments,
            action=table_of[:, 0].astype(np.uint8),
            addr=table_of[:, 1].copy(),
            size=table_of[:, 2].copy(),
            t_ns=times,
            **narrow,
            stacks=[list(stack) for stack in self.stacks],
            tags=list(self.tags),
            streams=list(self.streams),
            pools=list(self.pools),
            settings=dict(settings) if isinstance(settings, dict) else {},
            timed=timed,
            notes=[f"{self.others} events of unknown actions"] if self.others else [],
        )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _frame(frame: Any) -> tuple[str, int, str]:
    if not isinstance(frame, dict):
        raise FormatError(f"a frame is a {type(frame).__name__}, not a table")
    line = frame.get("line")
    return (
        _text(frame.get("filename")),
        line if type(line) is int and 0 <= line < 1 << 31 else 0,
        _text(frame.get("name")),
    )
