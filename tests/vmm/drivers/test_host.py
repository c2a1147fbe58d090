# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The host driver: real memory, faults, the limits of the kernel, fork, and kernels that touch."""

import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.vmm.drivers.driver import INVALID, NOT_READY, OUT_OF_MEMORY, Driver, MiB, Refused

SIZE = 64 << 10  # a small granularity, so that many pages cost little


def host(**options: object) -> Driver:
    return Driver(driver="host", granularity=SIZE, device_bytes=256 * SIZE, **options)


def word(at: int) -> ctypes.c_uint64:
    return ctypes.c_uint64.from_address(at)


def died_of_a_fault(touch: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # the fault is expected
        touch()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status == 0 or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV)
    return status != 0


def kernel_mappings(begin: int, end: int) -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    starts = [int(line.split("-")[0], 16) for line in lines]
    return sum(begin <= start < end for start in starts)


@pytest.mark.parametrize("write", [False, True])
def test_only_mapped_memory_with_access_can_be_touched(write: bool) -> None:
    def touch(at: int) -> Callable[[], object]:
        return lambda: setattr(word(at), "value", 1) if write else word(at).value

    with host() as driver:
        base = driver.reserve(4 * SIZE)
        assert died_of_a_fault(touch(base))
        driver.map(base, SIZE, driver.create(SIZE), access=False)
        assert died_of_a_fault(touch(base))
        driver.call("set_access", 0, base, SIZE)
        assert not died_of_a_fault(touch(base))
        assert not died_of_a_fault(touch(base + SIZE - 8))
        assert died_of_a_fault(touch(base + SIZE))
        driver.call("unmap", 0, base, SIZE)
        assert died_of_a_fault(touch(base))


def test_a_new_mapping_has_no_access_though_the_old_had() -> None:
    with host() as driver:
        base = driver.reserve(SIZE)
        driver.map(base, SIZE, driver.create(SIZE))
        driver.call("unmap", 0, base, SIZE)
        driver.map(base, SIZE, driver.create(SIZE), access=False)
        assert died_of_a_fault(lambda: word(base).value)


def test_memory_of_the_parent_is_shared_with_its_children() -> None:
    with host() as driver:
        base = driver.reserve(2 * SIZE)
        driver.map(base, SIZE, driver.create(SIZE))
        word(base).value = 41
        child = os.fork()
        if child == 0:
            driver.ask("abandon")
            word(base).value += 1
            driver.close()
            os._exit(word(base).value)  # still there
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert word(base).value == 42


def test_the_lowest_free_page_is_taken_so_that_neighbours_merge() -> None:
    with host() as driver:
        base = driver.reserve(64 * SIZE)
        pages = [driver.create(SIZE) for _ in range(64)]
        for slot, page in enumerate(pages):
            driver.map(base + slot * SIZE, SIZE, page)
        assert kernel_mappings(base, base + 64 * SIZE) == 1
        for slot in (30, 10, 11, 31, 12):
            driver.call("unmap", 0, base + slot * SIZE, SIZE)
            driver.call("page_release", 0, SIZE, pages[slot])
        again = [driver.create(SIZE) for _ in range(5)]
        assert again == [pages[slot] for slot in (10, 11, 12, 30, 31)]


def test_a_page_of_several_granules_finds_a_run_of_them() -> None:
    with host() as driver:
        pages = [driver.create(SIZE) for _ in range(256)]
        for number in (3, 100, 101, 102, 200, 201):
            driver.call("page_release", 0, SIZE, pages[number])
        with pytest.raises(Refused, match=f"no run of {4 * SIZE} bytes is free") as refused:
            driver.create(4 * SIZE)
        assert refused.value.status == OUT_OF_MEMORY
        big = driver.create(3 * SIZE)
        assert big == pages[100]
        base = driver.reserve(3 * SIZE)
        driver.map(base, 3 * SIZE, big)
        word(base + 3 * SIZE - 8).value = 7
        with pytest.raises(Refused, match="covers only a part of the mapping"):
            driver.call("unmap", 0, base + SIZE, SIZE)
        driver.call("page_release", 0, 3 * SIZE, big)
        driver.call("unmap", 0, base, 3 * SIZE)
        assert driver.memory().free == 6 * SIZE


MISUSES: dict[str, Callable[[Driver, int, int], object]] = {
    "overlaps the mapping": lambda d, base, page: d.call("map", 0, base, SIZE, page),
    "is not inside a reserved range": lambda d, base, page: d.call(
        "map", 0, base + 4 * SIZE, SIZE, page
    ),
    "there is no page 99 of": lambda d, base, page: d.call("map", 0, base + SIZE, SIZE, 99),
    "nothing is mapped at": lambda d, base, page: d.call("unmap", 0, base, 2 * SIZE),
    "nothing is mapped at 0x": lambda d, base, page: d.call("set_access", 0, base + SIZE, SIZE),
    "still has a page mapped at": lambda d, base, page: d.call("va_free", 0, base, 4 * SIZE),
    "has 262144 bytes, not 65536": lambda d, base, page: d.call("va_free", 0, base, SIZE),
    "no reserved range begins at": lambda d, base, page: d.call("va_free", 0, base + SIZE, SIZE),
    "no access was set for": lambda d, base, page: d.put(base, b"x"),
    "there is no page 77": lambda d, base, page: d.call("page_release", 0, SIZE, 77),
    "has 65536 bytes, not 131072": lambda d, base, page: d.call("page_release", 0, 2 * SIZE, page),
    "address must be a multiple of 65536": lambda d, base, page: d.call(
        "map", 0, base + 4096, SIZE, page
    ),
}


@pytest.mark.parametrize("why", MISUSES)
def test_misuse_is_refused_and_changes_nothing(why: str) -> None:
    with host() as driver:
        base = driver.reserve(4 * SIZE)
        page = driver.create(SIZE)
        driver.map(base, SIZE, page, access=False)
        with pytest.raises(Refused, match=why) as refused:
            MISUSES[why](driver, base, page)
        assert refused.value.status == INVALID
        driver.call("set_access", 0, base, SIZE)
        driver.put(base, b"as before")
        assert driver.get(base, 9) == b"as before"
        driver.call("unmap", 0, base, SIZE)
        driver.call("page_release", 0, SIZE, page)
        driver.call("va_free", 0, base, 4 * SIZE)
        assert driver.memory().free == 256 * SIZE


def test_the_number_of_mapped_pages_stays_below_the_limit_of_the_kernel() -> None:
    limit = int(Path("/proc/sys/vm/max_map_count").read_text())
    with Driver(driver="host", granularity=4096, device_bytes="1GiB") as driver:
        most = driver.capabilities().max_pages
        assert most == limit // 2 // 4 * 3
        if most > 40_000:
            pytest.skip(f"vm.max_map_count is {limit}: it would take long to come there")
        base = driver.reserve(2 * (most + 1) * 4096)
        page = driver.create(4096)
        # One page at every second address is the worst that can be.
        for number in range(most):
            driver.map(base + 2 * number * 4096, 4096, page)
        with pytest.raises(Refused, match=r"at most \d+ pages.*vm.max_map_count") as refused:
            driver.map(base + 2 * most * 4096, 4096, page)
        assert refused.value.status == OUT_OF_MEMORY
        driver.call("unmap", 0, base, 4096)
        driver.map(base + 2 * most * 4096, 4096, page)
        with Driver(driver="host", granularity=4096) as other, pytest.raises(Refused):
            other.map(other.reserve(4096), 4096, other.create(4096))
    with Driver(driver="host", granularity=4096) as other:
        other.map(other.reserve(4096), 4096, other.create(4096))


def test_a_huge_address_range_costs_nothing() -> None:
    with Driver(driver="host") as driver:
        base = driver.reserve(1 << 44)
        driver.map(base + (1 << 43), 2 * MiB, driver.create(2 * MiB))
        word(base + (1 << 43)).value = 5
        assert word(base + (1 << 43)).value == 5
        with pytest.raises(Refused) as refused:
            driver.reserve(1 << 50)
        assert refused.value.status == OUT_OF_MEMORY


def test_the_device_has_the_memory_of_the_machine_unless_told_otherwise() -> None:
    real = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with Driver(driver="host") as driver:
        assert driver.memory().total == real // (2 * MiB) * 2 * MiB


def test_an_exported_page_is_the_page() -> None:
    with host() as driver:
        driver.create(SIZE)
        page = driver.create(SIZE)
        base = driver.reserve(SIZE)
        driver.map(base, SIZE, page)
        driver.put(base, b"over there")
        (descriptor,) = driver.call("page_export", 0, page)
        try:
            assert os.lseek(descriptor, 0, os.SEEK_CUR) == SIZE
            assert os.read(descriptor, 10) == b"over there"
            os.pwrite(descriptor, b"from", SIZE)
        finally:
            os.close(descriptor)
        assert driver.get(base, 10) == b"from there"
        with pytest.raises(Refused, match="there is no page 99"):
            driver.call("page_export", 0, 99)


class TestKernels:
    """A kernel touches its range when it ends, and tells if that is not what it was."""

    @pytest.fixture
    def driver(self):
        with host(checking=1) as driver:
            yield driver

    @pytest.fixture
    def base(self, driver: Driver) -> int:
        base = driver.reserve(4 * SIZE)
        for slot in range(2):
            driver.map(base + slot * SIZE, SIZE, driver.create(SIZE))
        return base

    def kernel(self, driver: Driver, stream: int, at: int, what: str, stamp: int, ns: int) -> None:
        driver.call("host_kernel", 0, stream, at, SIZE, int(what == "write"), stamp, ns)

    def test_it_runs_when_its_time_has_come(self, driver: Driver, base: int) -> None:
        self.kernel(driver, 1, base, "write", 7, 100)
        driver.call("clock_set", 0, 99)
        assert word(base).value == 0
        assert driver.status("stream_query", 0, 1) == NOT_READY
        driver.call("clock_set", 0, 100)
        assert (word(base).value, word(base + SIZE - 8).value) == (7, 7)
        self.kernel(driver, 1, base, "read", 7, 10)
        driver.call("device_sync", 0)
        assert driver.ask("host_violations", 0) == ""

    def test_a_page_that_is_unmapped_too_early(self, driver: Driver, base: int) -> None:
        self.kernel(driver, 1, base, "read", 0, 100)
        self.kernel(driver, 2, base + SIZE, "read", 0, 100)
        driver.call("unmap", 0, base, SIZE)
        driver.call("clock_set", 0, 100)
        (violation,) = driver.ask("host_violations", 0).splitlines()
        assert f"nothing is mapped at {base:#x}" in violation
        assert "ends at 100 ns" in violation

    def test_a_page_that_is_replaced_too_early(self, driver: Driver, base: int) -> None:
        self.kernel(driver, 1, base, "write", 9, 100)
        driver.call("unmap", 0, base, SIZE)
        driver.map(base, SIZE, driver.create(SIZE))
        driver.call("device_sync", 0)
        assert "other pages are mapped there now" in driver.ask("host_violations", 0)
        assert word(base).value == 0

    def test_memory_that_is_given_to_another_too_early(self, driver: Driver, base: int) -> None:
        self.kernel(driver, 1, base, "write", 1, 100)
        self.kernel(driver, 2, base, "write", 2, 50)  # does not wait for stream 1
        self.kernel(driver, 2, base, "read", 2, 100)
        driver.call("device_sync", 0)
        assert f"reads 0x2 at [{base:#x}, {base + SIZE:#x}) and ends at 150 ns: " in driver.ask(
            "host_violations", 0
        )

    def test_memory_that_is_given_to_another_who_waits(self, driver: Driver, base: int) -> None:
        event = driver.event()
        self.kernel(driver, 1, base, "write", 1, 100)
        driver.call("event_record", 0, event, 1)
        driver.call("stream_wait", 0, 2, event)
        self.kernel(driver, 2, base, "write", 2, 50)
        self.kernel(driver, 2, base, "read", 2, 100)
        driver.call("device_sync", 0)
        assert driver.ask("host_violations", 0) == ""
        assert driver.ask("clock_now", 0) == 250

    def test_a_page_may_move_while_its_old_address_stays(self, driver: Driver, base: int) -> None:
        page = driver.create(SIZE)
        driver.map(base + 2 * SIZE, SIZE, page)
        self.kernel(driver, 1, base + 2 * SIZE, "write", 3, 100)
        driver.map(base + 3 * SIZE, SIZE, page)  # the alias
        driver.call("clock_set", 0, 100)
        driver.call("unmap", 0, base + 2 * SIZE, SIZE)
        self.kernel(driver, 2, base + 3 * SIZE, "read", 3, 10)
        driver.call("device_sync", 0)
        assert driver.ask("host_violations", 0) == ""

    def test_what_cannot_be_touched_is_refused(self, driver: Driver, base: int) -> None:
        with pytest.raises(Refused, match="nothing is mapped"):
            self.kernel(driver, 1, base + SIZE + SIZE // 2, "read", 0, 1)
        with pytest.raises(Refused, match="whole words of 8 bytes"):
            driver.call("host_kernel", 0, 1, base + 1, 8, 0, 0, 1)
        assert driver.status("stream_query", 0, 1) == 0
