# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What driver.h promises, of each driver, bare and inside all decorators.

test_cuda.py runs this file in a process of its own over a libcuda without a GPU.
"""

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from tests.vmm.drivers.driver import (
    INVALID,
    NOT_READY,
    OK,
    OUT_OF_MEMORY,
    Driver,
    MiB,
    Refused,
)

DRIVERS = os.environ.get("VMM_CONTRACT_DRIVERS", "null,host").split(",")
DECORATED = {"checking": 1, "counting": 1, "latency": "cuda", "fail": "any@1000000:oom"}
PAGES = 64  # that the device has

# Null trusts its caller about what is mapped and has no driver.
with_memory = pytest.mark.parametrize("kind", [name for name in DRIVERS if name != "null"])
# The fake libcuda has one state for all devices and leaves some checks to the real one.
ours = pytest.mark.parametrize("kind", [name for name in DRIVERS if name != "cuda"])


@pytest.fixture(params=DRIVERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["bare", "decorated"])
def driver(kind: str, request: pytest.FixtureRequest) -> Iterator[Driver]:
    decorators = DECORATED if request.param == "decorated" else {"counting": 0}
    memory = {} if kind == "cuda" else {"device_bytes": f"{2 * PAGES}MiB"}
    with Driver(driver=kind, devices=2, **memory, **decorators) as driver:
        assert driver.ask("name") == kind
        yield driver
        assert driver.ask("violations") == ""


@pytest.fixture
def page(driver: Driver) -> int:
    return driver.capabilities().granularity


def test_addresses_are_granular_and_apart(driver: Driver, page: int) -> None:
    ranges = [(driver.reserve(n * page, device), n * page) for n in (1, 5, 3) for device in (0, 1)]
    assert all(base % page == 0 for base, _ in ranges)
    ends = sorted((base, base + size) for base, size in ranges)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
    for number, (base, size) in enumerate(ranges):
        driver.call("va_free", number % 2, base, size)


def test_a_device_has_so_many_pages_and_no_more(driver: Driver, page: int) -> None:
    assert driver.memory() == (PAGES * page, PAGES * page)
    pages = [driver.create(page) for _ in range(PAGES)]
    assert 0 not in pages
    assert len(set(pages)) == PAGES
    assert driver.memory() == (0, PAGES * page)
    with pytest.raises(Refused) as refused:
        driver.create(page)
    assert refused.value.status == OUT_OF_MEMORY
    if driver.ask("name") != "cuda":  # of which the fake has one memory for all devices
        assert driver.memory(device=1).free == PAGES * page
    for handle in pages[10:20]:
        driver.call("page_release", 0, page, handle)
    assert driver.memory().free == 10 * page
    again = [driver.create(page) for _ in range(10)]
    assert len({*pages[:10], *pages[20:], *again}) == PAGES
    for handle in [*pages[:10], *pages[20:], *again]:
        driver.call("page_release", 0, page, handle)
    assert driver.memory().free == PAGES * page


@with_memory
def test_memory_is_held_until_the_last_unmap(driver: Driver, page: int) -> None:
    base = driver.reserve(2 * page)
    handle = driver.create(page)
    driver.map(base, page, handle)
    driver.map(base + page, page, handle)
    driver.put(base, b"held")
    driver.call("page_release", 0, page, handle)
    driver.call("unmap", 0, base, page)
    assert driver.get(base + page, 4) == b"held"
    assert driver.memory().free == (PAGES - 1) * page
    driver.call("unmap", 0, base + page, page)
    assert driver.memory().free == PAGES * page


@with_memory
def test_contents_follow_a_page_to_its_new_address(driver: Driver, page: int) -> None:
    base = driver.reserve(8 * page)
    handle = driver.create(page)
    for step in range(8):
        driver.map(base + step * page, page, handle)
        if step == 0:
            driver.put(base, b"first" + bytes(page - 10) + b"last!")
        content = driver.get(base + step * page, page)
        assert content[:5] + content[-5:] == b"firstlast!"
        driver.call("unmap", 0, base + step * page, page)


@with_memory
def test_two_mappings_of_a_page_are_one_memory(driver: Driver, page: int) -> None:
    base = driver.reserve(4 * page)
    handle = driver.create(page)
    driver.map(base, page, handle)
    driver.map(base + 3 * page, page, handle)
    driver.put(base + 100, b"one way")
    assert driver.get(base + 3 * page + 100, 7) == b"one way"
    driver.put(base + 3 * page + 100, b"back")
    assert driver.get(base + 100, 7) == b"backway"


@with_memory
def test_scattered_pages_are_one_range(driver: Driver, page: int) -> None:
    base = driver.reserve(6 * page)
    handles = [driver.create(page) for _ in range(12)]
    order = [11, 2, 7, 0, 9, 4]
    for slot, number in enumerate(order):
        driver.call("map", 0, base + slot * page, page, handles[number])
    driver.call("set_access", 0, base, 6 * page)  # one call
    content = random.Random(0).randbytes(5 * page)
    driver.put(base + 1000, content)
    assert driver.get(base + 1000, len(content)) == content
    driver.call("unmap", 0, base, 6 * page)  # one call
    other = driver.reserve(page)
    driver.map(other, page, handles[7])  # the third slot
    assert driver.get(other, page) == content[2 * page - 1000 : 3 * page - 1000]


@with_memory
def test_a_released_page_comes_back_empty(driver: Driver, page: int) -> None:
    base = driver.reserve(page)
    pages = [driver.create(page) for _ in range(PAGES)]
    driver.map(base, page, pages[5])
    driver.put(base, b"\xff" * page)
    driver.call("unmap", 0, base, page)
    driver.call("page_release", 0, page, pages[5])
    driver.map(base, page, driver.create(page))
    assert driver.get(base, page) == bytes(page)


@ours
@pytest.mark.parametrize("size", [0, 1, 2 * MiB - 1, 2 * MiB + 4096])
def test_sizes_are_multiples_of_the_granularity(kind: str, size: int) -> None:
    with Driver(driver=kind) as driver:
        for name in ("va_reserve", "page_create"):
            with pytest.raises(Refused, match="size must") as refused:
                driver.call(name, 0, size)
            assert refused.value.status == INVALID


@pytest.mark.parametrize("device", [-1, 2, 1 << 30])
def test_there_are_so_many_devices(kind: str, device: int) -> None:
    with Driver(driver=kind, devices=2) as driver:
        for call in (driver.reserve, driver.create):
            with pytest.raises(Refused, match=f"device must be from 0 to 1, but is {device}"):
                call(driver.capabilities().granularity, device)
        assert driver.status("device_sync", device) == INVALID
        assert driver.ask("capturing", device, 0) in (0, 1)


def test_an_idle_stream_is_done_and_so_is_its_event(driver: Driver) -> None:
    event = driver.event()
    assert driver.status("event_query", 0, event) == OK  # never recorded
    driver.call("event_record", 0, event, 0)
    assert driver.status("event_query", 0, event) in (OK, NOT_READY)
    driver.call("stream_wait", 0, 0, event)
    driver.call("event_sync", 0, event)
    assert driver.status("event_query", 0, event) == OK
    driver.call("device_sync", 0)
    assert driver.status("stream_query", 0, 0) == OK
    assert driver.ask("capturing", 0, 0) == 0
    driver.call("event_destroy", 0, event)


@ours
def test_devices_are_used_by_different_threads(driver: Driver, page: int) -> None:
    def work(device: int) -> int:
        base = driver.reserve(16 * page, device)
        for step in range(200):
            at = base + step % 16 * page
            handle = driver.create(page, device)
            driver.map(at, page, handle, device=device)
            event = driver.event(device)
            driver.call("event_record", device, event, device)
            driver.call("event_sync", device, event)
            driver.call("event_destroy", device, event)
            driver.call("unmap", device, at, page)
            driver.call("page_release", device, page, handle)
        driver.call("va_free", device, base, 16 * page)
        return driver.memory(device).free

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (0, 1))) == [PAGES * page] * 2
    assert driver.ask("leaks") == ""


def test_a_child_of_fork_has_no_driver(driver: Driver, page: int) -> None:
    base = driver.reserve(page)
    handle = driver.create(page)
    driver.map(base, page, handle)
    child = os.fork()
    if child == 0:
        driver.ask("abandon")
        dead = 7
        calls = [("unmap", 0, base, page), ("page_release", 0, page, handle), ("device_sync", 0)]
        failed = [driver.status(*call) == dead for call in calls]
        driver.close()  # gives nothing back
        os._exit(0 if all(failed) else 1)
    assert os.waitpid(child, 0)[1] == 0
    driver.call("unmap", 0, base, page)
    driver.call("page_release", 0, page, handle)
    driver.call("va_free", 0, base, page)
    assert driver.memory().free == PAGES * page
    assert driver.ask("leaks") == ""
