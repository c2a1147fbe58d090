# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Events made by hand become the traces worked out by hand."""

import numpy as np

from tests.vmm.observe.made import (
    BASE,
    LARGE,
    PAGE,
    alloc,
    block,
    done,
    events,
    free,
    mapped,
    slot,
    state,
    unmapped,
)
from vmm.observe.convert import to_trace
from vmm.observe.curves import curves
from vmm.observe.events import EVENT, no_events
from vmm.sim.trace import Trace


def rows(trace: Trace) -> list[tuple[str, int, int, int]]:
    """(op, id, bytes, address)"""
    return [
        (chr(op), id, size, addr)
        for op, id, size, addr in zip(
            trace.op.tolist(),
            trace.id.tolist(),
            trace.bytes.tolist(),
            trace.extra["addr"].tolist(),
            strict=True,
        )
    ]


def test_layout_of_an_event() -> None:
    assert EVENT.itemsize == 48
    assert [EVENT.fields[name][1] for name in ("aux", "stream", "device", "thread", "tag")] == [
        24,
        32,
        36,
        38,
        40,
    ]


def test_same_address_used_again_is_another_allocation() -> None:
    trace = to_trace(
        events(
            mapped(BASE, 5),
            alloc(BASE, 1024, 1000),
            alloc(BASE + 1024, 512, 300),
            free(BASE, 1024),
            done(BASE, 1024),
            alloc(BASE, 512, 512),
            free(BASE + 1024, 512),
        )
    ).validate()
    assert rows(trace) == [
        ("M", -1, PAGE, BASE),
        ("a", 0, 1024, BASE),
        ("a", 1, 512, BASE + 1024),
        ("f", 0, 1024, BASE),
        ("c", 0, 1024, BASE),
        ("a", 2, 512, BASE),
        ("f", 1, 512, BASE + 1024),
    ]
    assert trace.header["initial_rows"] == 0
    assert trace.extra["requested"].tolist() == [0, 1000, 300, 0, 0, 512, 0]
    assert trace.extra["aux"].tolist() == [5 | 1 << 56, 0, 0, 0, 0, 0, 0]
    totals = curves(trace)
    assert totals.allocated.tolist() == [0, 1024, 1536, 512, 512, 1024, 512]
    # Block 1 is freed, but nobody says that it is done.
    assert totals.active.tolist() == [0, 1024, 1536, 1536, 512, 1024, 1024]
    assert totals.requested.tolist() == [0, 1000, 1300, 300, 300, 812, 512]
    assert totals.blocks.tolist() == [0, 1, 2, 1, 1, 2, 1]
    assert totals.mapped.tolist() == [PAGE] * 7


def test_what_was_there_before_comes_first() -> None:
    """Known: freed without being born, still there, done without being freed, unmapped."""
    before = state(
        [block(LARGE, 4096, requested=4000, tag="old", stack=3), block(LARGE + 4096, 512)], []
    )
    after = state(
        [block(LARGE + 4096, 512, requested=500, tag="kept"), block(BASE, 512)],
        [slot(LARGE, 1), slot(LARGE + PAGE, 2, stale=True), slot(BASE, 7)],
    )
    trace = to_trace(
        events(
            free(LARGE, 4096),
            done(LARGE, 4096),
            done(LARGE + 8192, 512),
            unmapped(LARGE + 2 * PAGE, 9, 2),
            mapped(BASE, 7, 2),
            alloc(BASE, 512, 1, tag=4),
        ),
        before=before,
        after=after,
        tag_text={0: "", 4: "four"}.__getitem__,
        stacks=[(), (("a.py", 1, "f"),), (("b.py", 2, "g"),), (("c.py", 3, "h"),)],
    ).validate()
    assert rows(trace) == [
        ("M", -1, PAGE, LARGE),
        ("M", -1, PAGE, LARGE + 2 * PAGE),
        ("a", 0, 4096, LARGE),
        ("a", 1, 512, LARGE + 4096),
        ("a", 2, 512, LARGE + 8192),
        ("f", 2, 512, LARGE + 8192),
        ("f", 0, 4096, LARGE),
        ("c", 0, 4096, LARGE),
        ("c", 2, 512, LARGE + 8192),
        ("U", -1, PAGE, LARGE + 2 * PAGE),
        ("M", -1, PAGE, BASE),
        ("a", 3, 512, BASE),
    ]
    assert trace.header["initial_rows"] == 6
    assert trace.extra["requested"][2:5].tolist() == [4000, 500, 512]
    assert trace.extra["stack"].tolist() == [0, 0, 1, *[0] * 9]
    assert trace.header["stacks"] == [[], [["c.py", 3, "h"]]]
    texts = trace.header["tags"]
    assert [texts[tag] for tag in trace.tag[[2, 3, 4, 11]]] == ["old", "kept", "", "four"]
    assert (trace.t_ns[:6] == trace.t_ns[6]).all()


def test_header() -> None:
    after = state([], [slot(LARGE, 4, ipc=1, user=2), slot(LARGE + PAGE, 5)], limit_bytes=77)
    trace = to_trace(events(), device=3, after=after, lost=9, min_size=512, streams=(0, 5))
    header = trace.header
    assert (header["device"], header["device_capacity"], header["page_size"]) == (3, 77, PAGE)
    assert (header["streams"], header["pools"], header["tags"]) == ([0, 5], ["default"], [""])
    assert header["slots"] == [{"address": LARGE, "page": 4, "pins": [1, 0, 0, 2]}]
    assert [row["base"] for row in header["arenas"]] == [BASE, LARGE]
    assert header["notes"] == [
        "9 events were lost: the ring had no room for the oldest",
        "allocations of less than 512 bytes are left out",
    ]


def test_devices_are_apart() -> None:
    both = events(
        alloc(BASE, 512, device=0), alloc(BASE, 1024, device=1), free(BASE, 512, device=0)
    )
    assert rows(to_trace(both, device=0)) == [("a", 0, 512, BASE), ("f", 0, 512, BASE)]
    assert rows(to_trace(both, device=1)) == [("a", 0, 1024, BASE)]


def test_no_events() -> None:
    trace = to_trace(no_events()).validate()
    assert len(trace) == 0
    trace = to_trace(no_events(), after=state([block(BASE, 512)], [slot(BASE, 0)])).validate()
    assert rows(trace) == [("M", -1, PAGE, BASE), ("a", 0, 512, BASE)]
    assert trace.header["initial_rows"] == 2


def test_times_never_go_back() -> None:
    made = events(alloc(BASE, 512), alloc(BASE + 512, 512), free(BASE, 512))
    made["t_ns"] = [50, 40, 60]
    trace = to_trace(made).validate()
    assert trace.t_ns.tolist() == [50, 50, 60]
    assert np.array_equal(trace.id, [0, 1, 0])


def test_every_action_has_its_letter() -> None:
    made = events(*({"action": action, "address": BASE, "size": 512} for action in range(1, 14)))
    letters = bytes(to_trace(made).op.tolist()).decode()
    assert letters == "afcMUowymrzZn"
