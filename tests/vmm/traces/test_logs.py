# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Logs that name allocations by address: RMM, STAlloc, Paddle and the profiler of torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vmm.errors import FormatError
from vmm.sim.readers import chrome_trace, paddle_vlog, read_any, rmm, stalloc
from vmm.sim.trace import Trace


def ops(trace: Trace) -> str:
    return bytes(trace.op.tolist()).decode()


RMM = b"""Thread,Time,Action,Pointer,Size,Stream
11,15:47:02.841961,allocate,0x7f0a40000000,1048576,0x2
12,15:47:02:841977,allocate,0x7f0a40100000,512,0
12,15:47:03.000000,allocate failure,0x0,99999999999,0
11,15:47:03.000001,free,0x7f0a40000000,1048576,0x2
11,00:00:00.000000,deallocate,0x7f0a40200000,64,0
"""


def test_rmm() -> None:
    assert rmm.matches(RMM)
    trace = rmm.read(RMM)
    assert ops(trace) == "aaaff"
    assert trace.bytes.tolist() == [64, 1048576, 512, 1048576, 64]
    assert trace.extra["addr"].tolist()[1:3] == [0x7F0A40000000, 0x7F0A40100000]
    assert trace.header["streams"] == [0, 2]
    assert trace.stream.tolist() == [0, 1, 0, 1, 0]
    assert trace.extra["thread"].tolist() == [0, 0, 1, 0, 0]
    midnight = 24 * 3600 - (15 * 3600 + 47 * 60 + 2.841961)
    assert trace.t_ns.tolist()[:4] == [0, 0, 16_000, 158_040_000]
    assert trace.t_ns[4] == round(midnight * 1e9)
    assert trace.header["notes"] == [
        "1 failed allocations left out",
        "1 allocations from before the first event",
    ]


def test_rmm_without_the_line_of_names_and_with_seconds_since_the_epoch() -> None:
    data = (
        b"1979932,1634567890.5,allocate,0x30a000000,256,0x2\n"
        b"1979932,1634567890.75,free,0x30a000000,256,0x2\n"
    )
    assert rmm.matches(data)
    trace = rmm.read(data)
    assert ops(trace) == "af"
    assert trace.t_ns.tolist() == [0, 250_000_000]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (b"Thread,Time", b"Time", "the columns Thread are missing in line 1"),
        (b"0,allocate", b"0,resize", "line 2: Action is 'resize', not allocate or free"),
        (b",1048576,0x2\n12", b",0x2\n12", "line 2 has 5 fields, not 6"),
        (b"0x7f0a40000000,1", b"zzz,1", "line 2: a pointer is 'zzz', not a number"),
        (b"1048576", b"-1", "the size -1 is not from 0"),
        (b"15:47:02.841961", b"now", "line 2: Time is 'now', not hours:minutes:seconds"),
        (b"0x7f0a40000000", b"0x" + b"f" * 30, "is not from 0 to"),
    ],
)
def test_wrong_lines_of_rmm_are_named(old: bytes, new: bytes, text: str) -> None:
    data = (
        RMM.replace(b"961,allocate", b"961,resize")
        if b"resize" in new
        else RMM.replace(old, new, 1)
    )
    with pytest.raises(FormatError, match=text):
        rmm.read(data)


STALLOC = b"""Iteration Index : 0
1 0x7f0000000000 4096 0
1 0x7f0000001000 100 0x55d0
decoder.layers.0.mlp->MoELayer Layer : F-start
Iteration Index : 1
0 0x7f0000000000 4096 0
1 0x7f0000000000 8192 0
1 0 0 0
0 0 0 0
0 0x7f0000009000 77 0
Iteration Index : end
"""


def test_stalloc() -> None:
    assert stalloc.matches(STALLOC)
    trace = stalloc.read(STALLOC)
    assert ops(trace) == "amaamfaf"
    assert trace.bytes.tolist() == [77, 0, 4096, 100, 0, 4096, 8192, 77]
    assert trace.t_ns.tolist() == [0, 0, 10_000, 20_000, 40_000, 50_000, 60_000, 90_000]
    assert trace.header["streams"] == [0, 0x55D0]
    assert trace.steps == 2
    assert trace.header["notes"] == [
        "1 allocations from before the first event",
        "2 zero-size requests left out",
    ]


def test_wrong_lines_of_stalloc_are_named() -> None:
    with pytest.raises(FormatError, match=r"line 2 is not '1\|0 pointer size stream': '2 0x5 1 0'"):
        stalloc.read(b"1 0x1 5 0\n2 0x5 1 0\n")
    with pytest.raises(FormatError, match="line 1: the size is 'x', not a number"):
        stalloc.read(b"1 0x1 x 0\n")
    with pytest.raises(FormatError, match="not one allocation or free in this STAlloc trace"):
        stalloc.read(b"Iteration Index : 0\n")
    with pytest.raises(FormatError, match="line 1 is longer than 65536 bytes"):
        stalloc.read(b"1" * 70_000)


HEAD = "{}  {} stat_allocator.h:58] Allocator instance: "
PADDLE = "".join(
    HEAD.format(*head) + line + "\n"
    for head, line in (
        (
            ("I0304 23:59:59.999990", 4242),
            "0xaa Alloc 1000 bytes, ptr = 0x7f00, place = Place(gpu:0)",
        ),
        (
            ("I0305 00:00:00.000010", 4243),
            "0xbb Alloc 64 bytes, ptr = 0x8f00, place = Place(gpu:0)",
        ),
        (("I0305 00:00:00.000020", 4242), "0xaa Free 1000 bytes, ptr = 0x7f00"),
        (("I0305 00:00:00.000030", 4242), "0xcc Alloc 5 bytes, ptr = 0x10, place = Place(cpu)"),
        (
            ("I0305 00:00:00.000040", 4242),
            "0xdd Alloc 9 bytes, ptr = 0x20, place = Place(gpu_pinned)",
        ),
    )
).encode()


def test_paddle() -> None:
    assert paddle_vlog.matches(PADDLE)
    trace = paddle_vlog.read(PADDLE)
    assert ops(trace) == "aaf"
    assert trace.bytes.tolist() == [1000, 64, 1000]
    assert trace.t_ns.tolist() == [0, 20_000, 30_000]
    assert trace.stream.tolist() == [0, 1, 0]
    assert trace.header["streams"] == [0, 0xBB]
    assert trace.header["allocators"] == ["0xaa", "0xbb"]
    assert trace.extra["thread"].tolist() == [0, 1, 0]
    assert trace.header["notes"] == ["2 events of other places left out"]


def test_paddle_without_times_and_with_devices() -> None:
    line = "Allocator instance: 0x{0} {1} {2} bytes, ptr = 0x{3}, place = Place({4})\n"
    rows = ((1, "Alloc", 8, 10, "gpu:0"), (2, "Alloc", 9, 20, "gpu:3"), (2, "Free", 9, 20, "gpu:3"))
    data = "".join(line.format(*row) for row in rows).encode()
    with pytest.raises(FormatError, match=r"several devices are recorded \(0, 3\): choose one"):
        paddle_vlog.read(data)
    trace = paddle_vlog.read(data, 3)
    assert (ops(trace), trace.bytes.tolist(), trace.t_ns.tolist()) == ("af", [9, 9], [0, 10_000])
    host = paddle_vlog.read(data.replace(b"gpu:3", b"cpu").replace(b"gpu:0", b"cpu"))
    assert ops(host) == "aaf"


def test_a_log_without_events_is_refused() -> None:
    with pytest.raises(FormatError, match="no line tells of an allocation"):
        paddle_vlog.read(b"Allocator instance: none\n")


def memory(at: float, address: int, size: int, kind: int = 1, device: int = 0) -> dict[str, Any]:
    values = {"Addr": address, "Bytes": size, "Device Type": kind, "Device Id": device}
    return {"ph": "i", "name": "[memory]", "ts": at, "args": values | {"Total Allocated": 0}}


def test_the_profiler() -> None:
    step = {"ph": "X", "name": "ProfilerStep#1", "cat": "user_annotation", "ts": 12.0, "dur": 5}
    events = [
        {"ph": "X", "name": "aten::add", "ts": 1, "args": {}},
        memory(11.5, 4096, 100),
        memory(13, 4096, -100),
        memory(12.25, 8192, 7),
        memory(1, 4096, 100, kind=0, device=-1),
        memory(14, 12288, -60),
        step,
        step | {"cat": "gpu_user_annotation"},
    ]
    trace = chrome_trace.read({"traceEvents": events})
    assert ops(trace) == "aamaff"
    assert trace.bytes.tolist() == [60, 100, 0, 7, 100, 60]
    assert trace.t_ns.tolist() == [0, 0, 500, 750, 1500, 2500]
    assert trace.header["notes"] == [
        "1 events of other devices left out",
        "1 allocations from before the first event",
    ]
    assert ops(chrome_trace.read(events, -1)) == "ma" or ops(chrome_trace.read(events, -1)) == "am"


def test_the_device_of_a_profile_is_chosen() -> None:
    events = [memory(1, 10, 5, device=0), memory(2, 10, 6, device=1)]
    with pytest.raises(FormatError, match=r"several devices are recorded \(0, 1\)"):
        chrome_trace.read(events)
    assert chrome_trace.read(events, 1).bytes.tolist() == [6]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (5, "event 0 is a int, not a table"),
        ({"name": "[memory]", "ts": 1}, "event 0 has no args"),
        (memory(1, 1, 1) | {"ts": "soon"}, "ts of event 0 is 'soon', not a time"),
        (memory(float("nan"), 1, 1), "ts of event 0 is 'nan', not a time"),
        (memory(1, 1, 1) | {"args": {"Addr": 5}}, "Bytes of event 0 is 'None', not a number"),
        (memory(1, 1, 1) | {"args": {"Addr": [], "Bytes": 5}}, r"Addr of event 0 is '\[\]', not a"),
        ({"name": "x"}, r"there is no \[memory\] event; profile with profile_memory=True"),
    ],
)
def test_wrong_events_of_a_profile_are_named(event: Any, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        chrome_trace.read({"traceEvents": [event]})


def test_a_profile_of_this_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        kept = torch.ones(1000)
        for rows in (3, 5):
            torch.zeros(rows, 1000).sum()
    path = tmp_path / "profile.json"
    recorded.export_chrome_trace(str(path))
    trace = read_any(path)
    assert trace.header["source"] == "torch profiler"
    sizes = trace.bytes[trace.is_op("a")].tolist()
    assert [size for size in sizes if size >= 4000] == [4000, 12000, 20000]
    assert trace.live().max() >= 4000 + 20000
    assert trace.live()[-1] == 4000
    assert len(kept) == 1000
    totals = [
        e["args"]["Total Allocated"]
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("name") == "[memory]"
    ]
    # What this process held before is in the totals, too.
    assert (trace.live() - totals).tolist() == [trace.live()[0] - totals[0]] * len(totals)
