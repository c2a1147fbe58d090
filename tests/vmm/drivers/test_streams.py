# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Virtual streams: what is done when, on a clock that a test sets."""

import pytest

from tests.vmm.drivers.driver import INVALID, NOT_READY, OK, UNSUPPORTED, Driver, Refused


@pytest.fixture(params=["null", "host"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_kernels_of_a_stream_follow_each_other(kind: str) -> None:
    with Driver(driver=kind) as driver:
        assert driver.capabilities().logical_clock
        driver.call("clock_set", 0, 1000)
        driver.call("clock_kernel", 0, 1, 50)
        driver.call("clock_kernel", 0, 1, 30)
        driver.call("clock_kernel", 0, 2, 60)
        first = driver.event()
        driver.call("event_record", 0, first, 1)
        done = {1: 1080, 2: 1060, 3: 0}
        for now in (1000, 1059, 1060, 1079, 1080):
            driver.call("clock_set", 0, now)
            for stream, end in done.items():
                assert driver.status("stream_query", 0, stream) == (OK if now >= end else NOT_READY)
            assert driver.status("event_query", 0, first) == (OK if now >= 1080 else NOT_READY)


def test_work_starts_when_the_stream_is_free_but_not_before_now(kind: str) -> None:
    with Driver(driver=kind) as driver:
        driver.call("clock_kernel", 0, 1, 10)
        driver.call("clock_set", 0, 100)
        driver.call("clock_kernel", 0, 1, 10)
        driver.call("clock_set", 0, 109)
        assert driver.status("stream_query", 0, 1) == NOT_READY
        driver.call("clock_set", 0, 110)
        assert driver.status("stream_query", 0, 1) == OK


def test_a_stream_that_waits_is_busy_as_long_as_the_other(kind: str) -> None:
    with Driver(driver=kind) as driver:
        event = driver.event()
        driver.call("clock_kernel", 0, 1, 70)
        driver.call("event_record", 0, event, 1)
        driver.call("clock_kernel", 0, 1, 1000)  # behind the event
        driver.call("clock_kernel", 0, 2, 5)
        driver.call("stream_wait", 0, 2, event)
        driver.call("clock_kernel", 0, 2, 5)
        driver.call("clock_set", 0, 74)
        assert driver.status("stream_query", 0, 2) == NOT_READY
        driver.call("clock_set", 0, 75)
        assert driver.status("stream_query", 0, 2) == OK
        assert driver.status("stream_query", 0, 1) == NOT_READY


def test_synchronizing_moves_the_clock_and_time_never_goes_back(kind: str) -> None:
    with Driver(driver=kind) as driver:
        event = driver.event()
        driver.call("clock_kernel", 0, 1, 70)
        driver.call("event_record", 0, event, 1)
        driver.call("clock_kernel", 0, 1, 30)
        driver.call("event_sync", 0, event)
        assert driver.ask("clock_now", 0) == 70
        assert driver.status("stream_query", 0, 1) == NOT_READY
        driver.call("device_sync", 0)
        assert driver.ask("clock_now", 0) == 100
        driver.call("clock_set", 0, 20)
        assert driver.ask("clock_now", 0) == 100
        driver.call("event_sync", 0, event)
        assert driver.ask("clock_now", 0) == 100


def test_each_device_has_its_clock(kind: str) -> None:
    with Driver(driver=kind, devices=2) as driver:
        driver.call("clock_set", 1, 500)
        assert [driver.ask("clock_now", device) for device in (0, 1)] == [0, 500]


def test_work_lags_behind(kind: str) -> None:
    with Driver(driver=kind, lag_ns=40) as driver:
        event = driver.event()
        driver.call("clock_set", 0, 100)
        driver.call("event_record", 0, event, 5)
        for now, want in ((139, NOT_READY), (140, OK)):
            driver.call("clock_set", 0, now)
            assert driver.status("event_query", 0, event) == want
        # Work that nobody told of is always on its way, but not right after a synchronization.
        assert driver.status("stream_query", 0, 5) == NOT_READY
        driver.call("event_record", 0, event, 5)
        driver.call("device_sync", 0)
        assert driver.ask("clock_now", 0) == 180
        assert driver.status("event_query", 0, event) == OK
        assert driver.status("stream_query", 0, 5) == OK
        driver.call("clock_kernel", 0, 5, 1)
        assert driver.status("stream_query", 0, 5) == NOT_READY
        driver.call("event_record", 0, event, 5)
        for now, want in ((220, NOT_READY), (221, OK)):
            driver.call("clock_set", 0, now)
            assert driver.status("event_query", 0, event) == want


def test_a_destroyed_event_is_unknown_and_a_new_one_is_fresh(kind: str) -> None:
    with Driver(driver=kind) as driver:
        event = driver.event()
        driver.call("clock_kernel", 0, 1, 70)
        driver.call("event_record", 0, event, 1)
        driver.call("event_destroy", 0, event)
        for call in ("event_query", "event_sync", "event_destroy"):
            assert driver.status(call, 0, event) == INVALID
        for call in (("event_record", 0, event, 1), ("stream_wait", 0, 1, event)):
            assert driver.status(*call) == INVALID
        assert driver.status("event_query", 0, driver.event()) == OK
        assert driver.status("event_query", 0, 0) == INVALID


def test_a_stream_can_be_captured(kind: str) -> None:
    with Driver(driver=kind, checking=1) as driver:
        driver.call("set_capturing", 0, 3, 1)
        assert [driver.ask("capturing", 0, stream) for stream in (2, 3)] == [0, 1]
        driver.call("set_capturing", 0, 3, 0)
        assert driver.ask("capturing", 0, 3) == 0


def test_kernels_that_touch_memory_are_of_the_host_driver() -> None:
    with Driver(driver="null") as driver, pytest.raises(Refused) as refused:
        driver.call("host_kernel", 0, 1, 0, 8, 1, 1, 1)
    assert refused.value.status == UNSUPPORTED
