# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Recorders: what they take, refuse, write to disk, and how they get on with threads."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from tests.vmm.observe.model import random_run
from tests.vmm.observe.page_walk import check_snapshot
from vmm import Allocator, Dead, Invalid
from vmm.errors import FormatError
from vmm.observe.api import record
from vmm.observe.curves import curves
from vmm.observe.recorder import Recorder
from vmm.observe.recording import Recording
from vmm.observe.torch_pickle import snapshot_of


@pytest.fixture
def one() -> Allocator:
    return Allocator(driver="null", device_bytes=1 << 30)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"max_entries": 0}, "max_entries: must be a whole number from 1, but is 0"),
        ({"max_entries": True}, "max_entries: must be a whole number from 1, but is True"),
        ({"min_size": -1}, "min_size: must be a number of bytes from 0, but is -1"),
        ({"stacks": "cpp"}, "stacks: must be one of none, python, all, but is 'cpp'"),
    ],
)
def test_arguments(one: Allocator, keys: dict[str, object], sentence: str) -> None:
    with pytest.raises(Invalid) as error:
        record(**keys, allocator=one)  # type: ignore[arg-type]
    assert str(error.value) == sentence


def test_one_recording_at_a_time(one: Allocator) -> None:
    first = record(100, allocator=one).start()
    with pytest.raises(Invalid, match="runs already"):
        record(100, allocator=one).start()
    one.alloc(512)
    assert len(first.stop()) == 2  # a page is mapped, a block is born
    assert first.stop() is first.recording
    with record(100, allocator=one) as second:
        pass
    assert second.recording is not None
    assert len(second.recording) == 0
    with pytest.raises(Invalid, match="has not been started"):
        record(100, allocator=one).stop()


def test_an_allocator_that_was_closed_is_in_nobodys_way(one: Allocator) -> None:
    recorder = record(100, allocator=one).start()
    one.close()
    with pytest.raises(Dead):
        recorder.stop()
    for _ in range(20):  # one of them is where the closed one was
        other = Allocator(driver="null", device_bytes=1 << 30)
        with record(100, allocator=other):
            pass
        other.close()


def test_a_recording_ends_when_the_body_raises(one: Allocator) -> None:
    recorder = record(100, allocator=one)
    with pytest.raises(KeyError), recorder:
        raise KeyError
    assert recorder.recording is not None
    with record(100, allocator=one):
        pass


def test_without_an_allocator_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    from vmm import torch_hooks

    monkeypatch.setattr(torch_hooks, "enabled", lambda: None, raising=False)
    with pytest.raises(Invalid, match="allocator: none was given, and none is enabled"):
        record().start()


def test_the_enabled_allocator_is_the_default(
    one: Allocator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vmm import torch_hooks

    monkeypatch.setattr(torch_hooks, "enabled", lambda: one, raising=False)
    with record(100) as recorder:
        one.alloc(512)
    assert recorder.recording is not None
    assert len(recorder.recording) == 2


def test_peek_goes_on(one: Allocator) -> None:
    with record(1000, allocator=one) as recorder:
        address = one.alloc(512)
        first = recorder.peek()
        one.free(address)
    assert recorder.recording is not None
    assert bytes(first.trace.op.tolist()) == b"Ma"
    assert bytes(recorder.recording.trace.op.tolist()) == b"Mafc"


def test_draining_loses_nothing(one: Allocator) -> None:
    with record(8, allocator=one) as recorder:
        for _ in range(50):
            one.free(one.alloc(512))
            recorder.drain()
    assert recorder.recording is not None
    assert recorder.recording.lost == 0
    assert len(recorder.recording) == 1 + 50 * 3


def test_marks_of_other_kinds(one: Allocator) -> None:
    with record(100, allocator=one) as recorder:
        one.mark_step()
        one.note("here")
    assert recorder.recording is not None
    trace = recorder.recording.trace
    assert bytes(trace.op.tolist()) == b"mn"
    assert trace.header["tags"][trace.tag[1]] == "here"


def test_devices_have_traces_of_their_own() -> None:
    two = Allocator(driver="null", device_bytes=1 << 30, devices=2)
    two.alloc(4096, device=1)
    with record(100, allocator=two) as recorder:
        two.alloc(512, device=1)
    recording = recorder.recording
    assert recording is not None
    assert sorted(recording.traces) == [0, 1]
    assert len(recording.trace) == 0
    assert bytes(recording.of_device(1).op.tolist()) == b"Maa"
    with pytest.raises(Invalid, match="device: 7 has no events; devices with events: 0, 1"):
        recording.of_device(7)


def leaf(allocator: Allocator) -> int:
    return allocator.alloc(512)


def test_stacks_name_the_lines(one: Allocator) -> None:
    lines = [leaf.__code__.co_firstlineno + 1, sys._getframe().f_lineno + 3]
    with record(100, stacks="python", allocator=one) as recorder:
        for _ in range(3):
            leaf(one)
        one.alloc(512)
    assert recorder.recording is not None
    trace = recorder.recording.trace
    rows = trace.extra["stack"][trace.op == ord("a")].tolist()
    assert rows[0] == rows[1] == rows[2] != rows[3]
    inner, outer = trace.header["stacks"][rows[0]][:2]
    assert inner == [__file__, lines[0], "leaf"]
    assert outer == [__file__, lines[1], "test_stacks_name_the_lines"]
    assert trace.header["stacks"][rows[3]][0] == [
        __file__,
        lines[1] + 1,
        "test_stacks_name_the_lines",
    ]


def test_frames_of_torch_are_left_out_on_request(one: Allocator) -> None:
    import torch
    from torch.utils._pytree import tree_map

    def names(kind: str) -> list[str]:
        with record(100, stacks=kind, allocator=one) as recorder:
            tree_map(lambda size: one.alloc(size), [512])
        assert recorder.recording is not None
        trace = recorder.recording.trace
        stack = trace.extra["stack"][trace.op == ord("a")][-1]
        return [file for file, _, _ in trace.header["stacks"][stack]]

    folder = os.path.dirname(torch.__file__)
    assert not [file for file in names("python") if file.startswith(folder)]
    assert [file for file in names("all") if file.startswith(folder)]


def test_no_stacks_without_asking(one: Allocator) -> None:
    with record(100, stacks="python", allocator=one):
        pass
    with record(100, allocator=one) as recorder:
        leaf(one)
    assert recorder.recording is not None
    assert not recorder.recording.trace.extra["stack"].any()


def test_threads_and_their_numbers(one: Allocator) -> None:
    """Four threads allocate while a fifth looks; every event is there once."""
    rounds, kept = 300, 5
    looking = threading.Event()

    def work(size: int) -> None:
        for at in range(rounds):
            address = one.alloc(size)
            if at >= kept:
                one.free(address)

    def look() -> None:
        while not looking.is_set():
            recorder.drain()
            recorder.peek()

    with record(1 << 16, stacks="python", allocator=one) as recorder:
        workers = [threading.Thread(target=work, args=(512 << n,)) for n in range(4)]
        watcher = threading.Thread(target=look)
        for thread in (watcher, *workers):
            thread.start()
        for thread in workers:
            thread.join()
        looking.set()
        watcher.join()
    assert recorder.recording is not None
    trace = recorder.recording.trace.validate()
    allocs, frees = trace.op == ord("a"), trace.op == ord("f")
    assert allocs.sum() == 4 * rounds
    assert frees.sum() == 4 * (rounds - kept)
    assert len(set(trace.extra["thread"][allocs].tolist())) == 4
    for size in (512, 1024, 2048, 4096):
        own = allocs & (trace.extra["requested"] == size)
        assert len(set(trace.extra["thread"][own].tolist())) == 1
    assert curves(trace).allocated[-1] == kept * (512 + 1024 + 2048 + 4096)
    check_snapshot(snapshot_of(recorder.recording.traces))


def test_spool(tmp_path: Path) -> None:
    """A spool holds the same as memory would."""
    recordings = []
    for spool in (None, tmp_path / "spool"):
        one = Allocator(driver="null", device_bytes=1 << 30)
        one.alloc(7 << 20)
        with record(64, stacks="python", spool=spool, allocator=one) as recorder:
            for at in range(40):
                address = one.alloc((at + 1) * 1000, tag=f"tag {at % 3}")
                if at % 2:
                    one.free(address)
                recorder.drain()
        assert recorder.recording is not None
        recordings.append(recorder.recording)
    first, second = (recording.trace for recording in recordings)
    assert second.header["initial_rows"] == 5
    for column, values in first.columns.items():
        assert np.array_equal(values, second.columns[column]), column
    assert recordings[1].lost == 0
    # What another process can read of it: the same events, without what it cannot know.
    again = Recording.from_spool(tmp_path / "spool").trace
    assert again.header["initial_rows"] == 0
    assert np.array_equal(again.bytes, second.bytes[5:])
    texts = [again.header["tags"][tag] for tag in again.tag[again.op == ord("a")]]
    assert texts == [f"tag {at % 3}" for at in range(40)]
    stack = again.extra["stack"][again.op == ord("a")][0]
    assert again.header["stacks"][stack][0][2] == "test_spool"


@pytest.mark.parametrize("spooled", [False, True])
def test_a_gap_between_two_drains(tmp_path: Path, spooled: bool) -> None:
    """An allocation that the ring forgot, at an address that was used and freed before it."""
    one = Allocator(driver="null", device_bytes=1 << 30)
    spool = tmp_path / "spool" if spooled else None
    with record(4, spool=spool, allocator=one) as recorder:
        address = one.alloc(512, tag="first")
        one.free(address)
        recorder.drain()
        assert one.alloc(512, tag="second") == address
        for _ in range(4):
            recorder.allocator.note("filler")
        one.free(address)
        recorder.drain()
        kept = one.alloc(1 << 20)
    recording = recorder.recording
    assert recording is not None
    trace = recording.trace.validate()
    # The ring of four ends with two notes and the free; the block was there before them.
    assert "".join(map(chr, trace.op[trace.is_op("afcn")])) == "annfca"
    assert trace.extra["addr"][trace.op == ord("a")].tolist() == [address, kept]
    assert trace.header["lost"] == recording.lost == recorder.lost
    recording.save(tmp_path / "whole.vmmtrace")
    if spool:
        again = Recording.from_spool(spool)
        assert len(again) == len(recording)
        assert again.lost == recording.lost


def test_a_spool_that_ends_at_a_gap(tmp_path: Path, one: Allocator) -> None:
    """The tables speak of a chunk that the process did not live to write."""
    with record(100, spool=tmp_path / "spool", allocator=one):
        one.alloc(512)
    tables = tmp_path / "spool" / "tables.json"
    good = json.loads(tables.read_text())
    whole = len(Recording.from_spool(tmp_path / "spool"))
    tables.write_text(json.dumps({**good, "anew": [1]}))
    assert len(Recording.from_spool(tmp_path / "spool")) == whole > 0
    tables.write_text(json.dumps({**good, "anew": "x"}))
    with pytest.raises(FormatError, match="anew must be numbers of chunks"):
        Recording.from_spool(tmp_path / "spool")


def test_spool_refuses_what_is_not_one(tmp_path: Path, one: Allocator) -> None:
    (tmp_path / "events-00000000.npy").write_bytes(b"junk")
    with pytest.raises(Invalid, match="spool: the folder must be empty"):
        record(spool=tmp_path, allocator=one).start()
    with pytest.raises(FormatError, match="not a chunk of events"):
        Recording.from_spool(tmp_path)
    np.save(tmp_path / "events-00000000.npy", np.zeros(3))
    with pytest.raises(FormatError, match="holds float64, not events"):
        Recording.from_spool(tmp_path)
    # The refused start left nothing behind.
    with record(100, allocator=one):
        pass


def test_a_spool_without_its_tables(tmp_path: Path, one: Allocator) -> None:
    with record(100, spool=tmp_path / "spool", allocator=one):
        one.alloc(512)
    tables = tmp_path / "spool" / "tables.json"
    good = json.loads(tables.read_text())
    tables.write_text("{")
    with pytest.raises(FormatError, match="not JSON"):
        Recording.from_spool(tmp_path / "spool")
    tables.write_text(json.dumps({**good, "format": "other"}))
    with pytest.raises(FormatError, match='no "format"'):
        Recording.from_spool(tmp_path / "spool")
    tables.unlink()
    with pytest.raises(FormatError, match="has events but no"):
        Recording.from_spool(tmp_path / "spool")


def test_recorders_are_used_again(one: Allocator) -> None:
    recorder = Recorder(100, allocator=one)
    with recorder:
        one.alloc(512)
    with recorder:
        pass
    assert recorder.recording is not None
    assert len(recorder.recording) == 0


def test_import_is_light() -> None:
    code = (
        "import sys, vmm; "
        "print([n for n in ('numpy', 'torch', 'rich', 'vmm.observe.api') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_random_run_is_repeatable() -> None:
    first, second = (random_run(11)[2].trace for _ in range(2))
    for column, values in first.columns.items():
        assert np.array_equal(values, second.columns[column]), column


def test_peeking_outside_of_a_recording(one: Allocator) -> None:
    recorder = record(100, allocator=one)
    with pytest.raises(Invalid, match="the recording has not been started"):
        recorder.peek()
    with recorder:
        one.alloc(512)
        assert len(recorder.peek()) > 0
    assert recorder.peek() is recorder.recording is recorder.stop()
