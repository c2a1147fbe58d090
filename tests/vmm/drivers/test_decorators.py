# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Counted calls, modelled costs, and the options of a driver."""

import pytest

from tests.vmm.drivers.driver import (
    ACCESS,
    CREATE,
    EVENT,
    MAP,
    RELEASE,
    RESERVE,
    SYNC,
    UNMAP,
    WAIT,
    Driver,
    MiB,
    Refused,
)

SIZE = 2 * MiB


def one_of_everything(driver: Driver) -> None:
    base = driver.reserve(4 * SIZE)
    pages = [driver.create(SIZE) for _ in range(3)]
    for slot, page in enumerate(pages):
        driver.map(base + slot * SIZE, SIZE, page, access=False)
    driver.call("set_access", 0, base, 3 * SIZE)
    event = driver.event()
    driver.call("event_record", 0, event, 1)
    driver.status("event_query", 0, event)
    driver.status("stream_query", 0, 1)
    driver.call("stream_wait", 0, 2, event)
    driver.call("event_sync", 0, event)
    driver.call("device_sync", 0)
    driver.call("event_destroy", 0, event)
    driver.call("unmap", 0, base, 2 * SIZE)
    driver.call("unmap", 0, base + 2 * SIZE, SIZE)
    driver.call("page_release", 0, SIZE, pages[0])
    driver.call("va_free", 0, base, 4 * SIZE)


WANT = {CREATE: 3, RELEASE: 1, MAP: 3, UNMAP: 2, ACCESS: 1, RESERVE: 2, EVENT: 5, WAIT: 1, SYNC: 2}


@pytest.mark.parametrize("kind", ["null", "host"])
def test_calls_are_counted_by_kind_and_device(kind: str) -> None:
    with Driver(driver=kind, devices=2) as driver:
        one_of_everything(driver)
        counts = {of: driver.call("count", 0, of) for of in WANT}
        assert {of: calls for of, (calls, _) in counts.items()} == WANT
        assert all(driver.call("count", 1, of) == [0, 0] for of in WANT)
        if kind == "host":
            assert all(0 < ns < 10**9 for _, ns in counts.values())
        with pytest.raises(Refused, match="kind must be from 0 to 8, but is 9"):
            driver.call("count", 0, 9)


def test_nothing_is_counted_without_the_decorator() -> None:
    with Driver(driver="null", counting=0) as driver:
        one_of_everything(driver)
        assert all(driver.call("count", 0, of) == [0, 0] for of in WANT)
        assert driver.ask("modelled_ns", 0) == 0


def test_costs_add_up_by_the_table() -> None:
    costs = "create=30us,map=1.5us,set_access=2us,unmap=0.5ms,event_query=7ns,va_free=1s"
    with Driver(driver="null", counting=0, latency=costs) as driver:
        one_of_everything(driver)
        # Access and unmap cost by the page: three of each.
        parts = {
            CREATE: 3 * 30_000,
            MAP: 3 * 1_500,
            ACCESS: 3 * 2_000,
            UNMAP: 3 * 500_000,
            EVENT: 7,
            RESERVE: 10**9,
            RELEASE: 0,
            SYNC: 0,
            WAIT: 0,
        }
        assert {of: driver.call("count", 0, of)[1] for of in WANT} == parts
        assert driver.ask("modelled_ns", 0) == sum(parts.values())


def test_a_call_that_fails_costs_as_well() -> None:
    with Driver(driver="null", latency="create=5us", fail="create:oom") as driver:
        with pytest.raises(Refused):
            driver.create(SIZE)
        assert driver.ask("modelled_ns", 0) == 5_000


def test_costs_may_come_with_the_failures() -> None:
    for options in (
        {"fail": "create@9;latency:create=30us;latency:map=1us"},
        {"fail": "latency:create=30us", "latency": "create=1us,map=1us"},
    ):
        with Driver(driver="null", **options) as driver:
            driver.map(driver.reserve(SIZE), SIZE, driver.create(SIZE))
            assert driver.ask("modelled_ns", 0) == 31_000


def test_the_table_of_cuda_may_be_changed_in_places() -> None:
    totals = {}
    for costs in ("cuda", "cuda,create=0us", "cuda,create=1ms"):
        with Driver(driver="null", latency=costs) as driver:
            one_of_everything(driver)
            totals[costs] = driver.ask("modelled_ns", 0)
    assert totals["cuda"] > totals["cuda,create=0us"] > 0
    assert totals["cuda,create=1ms"] == totals["cuda,create=0us"] + 3_000_000


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"latency": "create"}, 'latency must be like "create=30us,map=5us" with calls from res'),
        ({"latency": "make=30us"}, 'but "make=30us" is not'),
        ({"latency": "map=3us,cuda"}, 'but "cuda" is not'),
        ({"latency": "create=30"}, "latency of create must be a time like 30us (ns, us, ms, s)"),
        ({"latency": "create=-1us"}, 'but is "-1us"'),
        ({"latency": "create=1e3us"}, 'but is "1e3us"'),
        ({"latency": "create=infs"}, 'but is "infs"'),
        ({"fail": "latency:create"}, 'latency must be like "create=30us,map=5us"'),
        ({"driver": "opencl"}, 'driver must be null, host or cuda, but is "opencl"'),
        ({"devices": 0}, "devices must be from 1 to 64, but is 0"),
        ({"devices": 65}, "devices must be from 1 to 64, but is 65"),
        ({"devices": "two"}, 'devices must be a number of devices, but is "two"'),
        ({"granularity": 3 << 20}, "granularity must be a power of two and at least 512"),
        ({"granularity": 256}, "for the null driver, but is 256"),
        ({"driver": "host", "granularity": 2048}, "at least 4096 for the host driver"),
        ({"device_bytes": "1MiB"}, "device_bytes must be 0 or at least the granularity 2097152"),
        ({"device_bytes": "1MB"}, 'device_bytes must be a size like 64MiB, but is "1MB"'),
        ({"device_bytes": "99999999TiB"}, "device_bytes must be a size like 64MiB"),
        ({"checking": "yes"}, 'checking must be 0 or 1, but is "yes"'),
        ({"color": "red"}, 'there is no option "color"'),
    ],
)
def test_an_option_that_breaks_a_rule(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(Refused) as refused:
        Driver(**options)
    assert sentence in refused.value.reason


def test_defaults() -> None:
    with Driver() as driver:
        assert driver.ask("name") == "null"
        assert driver.memory() == (1 << 40, 1 << 40)
        capabilities = driver.capabilities()
        assert capabilities.granularity == SIZE
        assert (capabilities.devices, capabilities.alias, capabilities.host_access) == (1, 1, 0)
        assert capabilities.max_pages == 2**64 - 1
        with pytest.raises(Refused, match="no memory that could be exported"):
            driver.call("page_export", 0, 1)
