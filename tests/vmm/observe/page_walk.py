# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Checks snapshots the way pytorch.org/memory_viz uses them: backwards from the final segments."""

import pickletools
from bisect import bisect_left, bisect_right, insort
from typing import Any

# What the unpickler of the page knows.
OPCODES = {
    "PROTO",
    "FRAME",
    "MARK",
    "MEMOIZE",
    "BINPUT",
    "LONG_BINPUT",
    "BINGET",
    "LONG_BINGET",
    "EMPTY_DICT",
    "EMPTY_LIST",
    "EMPTY_TUPLE",
    "APPEND",
    "APPENDS",
    "SETITEM",
    "SETITEMS",
    "TUPLE",
    "TUPLE1",
    "TUPLE2",
    "TUPLE3",
    "LIST",
    "DICT",
    "NONE",
    "NEWTRUE",
    "NEWFALSE",
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "STOP",
}
ACTIONS = {
    "alloc",
    "free_requested",
    "free_completed",
    "segment_map",
    "segment_unmap",
    "segment_alloc",
    "segment_free",
    "oom",
    "snapshot",
}
LIVE, PENDING, FREE = "active_allocated", "active_awaiting_free", "inactive"


def check_pickle(data: bytes) -> None:
    names = {opcode.name for opcode, _, _ in pickletools.genops(data)}
    assert names <= OPCODES, names - OPCODES
    protocol = next(pickletools.genops(data))
    assert (protocol[0].name, protocol[1]) == ("PROTO", 4)


def check_plain(value: Any) -> None:
    """Only what pickles to those opcodes, and integers that a double holds."""
    if type(value) is int:
        assert abs(value) < 2**53
    elif type(value) is dict:
        for key, inner in value.items():
            assert type(key) is str
            check_plain(inner)
    elif type(value) in (list, tuple):
        for inner in value:
            check_plain(inner)
    else:
        assert value is None or type(value) in (str, float, bool), type(value)


class Ranges:
    """Ranges that do not overlap, in order; neighbors of one stream are one range."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []  # begin, end, stream

    def around(self, begin: int, end: int) -> tuple[int, int, int]:
        at = bisect_right(self.rows, (begin, 1 << 62, 0)) - 1
        assert at >= 0, f"{begin:#x} lies in no segment"
        row = self.rows[at]
        assert row[0] <= begin, f"{begin:#x} lies in no segment"
        assert end <= row[1], f"{begin:#x} to {end:#x} does not lie in one segment"
        return row

    def add(self, begin: int, end: int, stream: int) -> None:
        at = bisect_left(self.rows, (begin, 0, 0))
        assert at == len(self.rows) or self.rows[at][0] >= end
        assert at == 0 or self.rows[at - 1][1] <= begin
        if at < len(self.rows) and self.rows[at][0] == end and self.rows[at][2] == stream:
            end = self.rows.pop(at)[1]
        if at > 0 and self.rows[at - 1][1] == begin and self.rows[at - 1][2] == stream:
            begin = self.rows.pop(at - 1)[0]
        insort(self.rows, (begin, end, stream))

    def remove(self, begin: int, end: int, stream: int) -> None:
        row = self.around(begin, end)
        assert row[2] == stream
        self.rows.remove(row)
        for low, high in ((row[0], begin), (end, row[1])):
            if low < high:
                insort(self.rows, (low, high, stream))


class Blocks:
    """Blocks that do not overlap, by address."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.rows: dict[int, tuple[int, str]] = {}  # size, state

    def add(self, begin: int, size: int, state: str) -> None:
        assert self.within(begin, begin + size) == []
        insort(self.begins, begin)
        self.rows[begin] = (size, state)

    def within(self, begin: int, end: int) -> list[int]:
        first = max(bisect_right(self.begins, begin) - 1, 0)
        last = bisect_left(self.begins, end)
        return [b for b in self.begins[first:last] if b + self.rows[b][0] > begin]

    def remove(self, begin: int) -> tuple[int, str]:
        self.begins.remove(begin)
        return self.rows.pop(begin)


def check_snapshot(snapshot: dict[str, Any]) -> list[tuple[dict[int, int], list[int]]]:
    """Per device: the live blocks before the first entry (address -> size), and the live bytes
    after each entry."""
    check_plain(snapshot)
    found = []
    for device, entries in enumerate(snapshot["device_traces"]):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        found.append(_walk(segments, entries))
    categories = {e.get("category") for d in snapshot["device_traces"] for e in d} - {None}
    assert not categories or "unknown" in categories
    return found


def _walk(
    segments: list[dict[str, Any]], entries: list[dict[str, Any]]
) -> tuple[dict[int, int], list[int]]:
    ranges, blocks = Ranges(), Blocks()
    for segment in segments:
        _check_segment(segment)
        end = segment["address"] + segment["total_size"]
        ranges.add(segment["address"], end, segment["stream"])
        for block in segment["blocks"]:
            if block["state"] != FREE:
                blocks.add(block["address"], block["requested_size"], block["state"])
    assert len(ranges.rows) == len(segments), "runs of one arena that touch are one segment"
    live = sum(size for size, state in blocks.rows.values() if state == LIVE)
    curve = []
    for entry in reversed(entries):
        action, size = entry["action"], entry["size"]
        assert action in ACTIONS
        assert isinstance(entry["frames"], list)
        curve.append(live)
        if action == "oom":
            assert "addr" not in entry
            assert "device_free" in entry
            continue
        begin, end = entry["addr"], entry["addr"] + size
        if action == "alloc":
            ranges.around(begin, end)
            assert blocks.remove(begin) == (size, LIVE)
            live -= size
        elif action == "free_requested":
            ranges.around(begin, end)
            assert blocks.rows[begin] == (size, PENDING), "a free is requested before it is done"
            blocks.rows[begin] = (size, LIVE)
            live += size
        elif action == "free_completed":
            ranges.around(begin, end)
            blocks.add(begin, size, PENDING)
        elif action == "segment_map":
            assert blocks.within(begin, end) == [], "a page goes from under a block"
            ranges.remove(begin, end, entry["stream"])
        elif action == "segment_unmap":
            ranges.add(begin, end, entry["stream"])
    before = {begin: size for begin, (size, state) in blocks.rows.items() if state == LIVE}
    return before, curve[::-1]


def _check_segment(segment: dict[str, Any]) -> None:
    at = segment["address"]
    for block in segment["blocks"]:
        assert block["address"] == at
        assert block["size"] > 0
        assert block["state"] in (LIVE, PENDING, FREE)
        assert block["requested_size"] <= block["size"]
        at += block["size"]
    assert at == segment["address"] + segment["total_size"]
    assert at < 1 << 47
    size = {
        state: sum(b["size"] for b in segment["blocks"] if b["state"] == state)
        for state in (LIVE, PENDING)
    }
    assert segment["allocated_size"] == size[LIVE]
    assert segment["active_size"] == size[LIVE] + size[PENDING]
    assert segment["segment_type"] in ("small", "large")
    assert len(segment["segment_pool_id"]) == 2
