# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What test_cuda.py runs in a process whose libcuda.so.1 is the fake: one function a case."""

import ctypes
import random
import sys
from collections.abc import Callable
from contextlib import closing

from tests.vmm.drivers.driver import (
    DEVICE_LOST,
    DRIVER,
    INVALID,
    NOT_READY,
    OK,
    OUT_OF_MEMORY,
    UNSUPPORTED,
    Driver,
    MiB,
    Refused,
)
from tests.vmm.drivers.fake_cuda import Levers
from vmm.allocator import Allocator

SIZE = 2 * MiB


def refusal(call: Callable[[], object]) -> Refused:
    try:
        call()
    except Refused as refused:
        return refused
    raise AssertionError("nothing was refused")


def opening(levers: Levers) -> None:
    levers.set("devices", 0)
    assert refusal(lambda: Driver(driver="cuda")).reason == (
        "devices must be at most the 0 that CUDA shows, but is 1"
    )
    levers.set("devices", 2)
    levers.set("vmm", 0)
    assert refusal(lambda: Driver(driver="cuda")).reason == (
        "CUDA device 0 has no virtual memory management"
    )
    levers.set("vmm", 1)
    for name in ("device_bytes", "granularity", "lag_ns"):
        assert refusal(lambda name=name: Driver(driver="cuda", **{name: 4 * MiB})).reason == (
            f"{name} is for the null and the host driver, not for cuda"
        )
    levers.fail("cuDeviceGetCount", 100)
    assert refusal(lambda: Driver(driver="cuda")).reason == (
        "driver:cuda needs a CUDA device: cuDeviceGetCount returned CUDA_ERROR_NO_DEVICE"
    )
    with Driver(driver="cuda", devices=2, alias=0) as driver:
        capabilities = driver.capabilities(1)
        assert (capabilities.granularity, capabilities.devices) == (SIZE, 2)
        assert (capabilities.alias, capabilities.rdma, capabilities.posix_fd) == (0, 1, 1)
        assert (capabilities.logical_clock, capabilities.host_access) == (0, 0)
        assert levers.seen("cuDevicePrimaryCtxRetain") == 0  # asking makes no context
        driver.memory(1)
        driver.memory(1)
        assert levers.seen("cuDevicePrimaryCtxRetain") == 1
        assert levers.seen("cuDevicePrimaryCtxRelease") == 0
    assert levers.seen("cuDevicePrimaryCtxRelease") == 1


def the_thread_is_left_as_it_was(levers: Levers) -> None:
    with Driver(driver="cuda", devices=2) as driver:
        for device in (0, 1, 0):
            driver.memory(device)
            assert driver.status("event_query", device, driver.event(device)) == OK
            levers.fail("cuStreamQuery", 999)
            assert driver.status("stream_query", device, 5) == DRIVER
        assert levers.seen("pushed") == 0
        assert levers.seen("mode") == 0
        assert levers.seen("not relaxed") == 0
        assert levers.seen("cuStreamQuery") == 3


def how_pages_are_made(levers: Levers) -> None:
    with Driver(driver="cuda") as driver:
        driver.create(SIZE)
        assert (levers.seen("handle types"), levers.seen("rdma")) == (1, 1)
        assert driver.capabilities().rdma == 1
    levers.set("rdma_works", 0)  # the device has it and the machine does not
    with Driver(driver="cuda") as driver:
        driver.create(SIZE)
        assert (levers.seen("handle types"), levers.seen("rdma")) == (1, 0)
        assert (driver.capabilities().rdma, driver.capabilities().posix_fd) == (0, 1)
        calls = levers.seen("cuMemCreate")
        driver.create(SIZE)
        assert levers.seen("cuMemCreate") == calls + 1
        # Now it is known to work: a refusal has another reason.
        levers.fail("cuMemCreate", 1)
        assert refusal(lambda: driver.create(SIZE)).status == INVALID
        assert driver.capabilities().posix_fd == 1
    with Driver(driver="cuda") as driver:
        levers.fail("cuMemCreate", 800, 2)
        page = driver.create(SIZE)
        assert (levers.seen("handle types"), levers.seen("rdma")) == (0, 0)
        assert refusal(lambda: driver.call("page_export", 0, page)).status == UNSUPPORTED
    levers.set("rdma", 0)
    with Driver(driver="cuda") as driver:
        levers.fail("cuMemCreate", 2)
        assert refusal(lambda: driver.create(SIZE)).status == OUT_OF_MEMORY
        assert driver.capabilities().posix_fd == 1  # that said nothing about it
        assert refusal(lambda: driver.create(SIZE + 1)).status == INVALID
        (descriptor,) = driver.call("page_export", 0, driver.create(SIZE))
        assert descriptor > 2


def errors(levers: Levers) -> None:
    with Driver(driver="cuda") as driver:
        base = driver.reserve(SIZE)
        page = driver.create(SIZE)
        for result, status, text in (
            (1, INVALID, "CUDA_ERROR_INVALID_VALUE"),
            (2, OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"),
            (800, DRIVER, "CUDA_ERROR_NOT_PERMITTED"),
            (801, UNSUPPORTED, "the error 801"),
            (999, DRIVER, "the error 999"),
        ):
            levers.fail("cuMemMap", result)
            refused = refusal(lambda: driver.call("map", 0, base, SIZE, page))
            assert refused.status == status
            assert refused.reason == f"cuMemMap returned {text}"
        driver.map(base, SIZE, page)
        for call in (("clock_set", 0, 5), ("clock_kernel", 0, 1, 5), ("set_capturing", 0, 1, 1)):
            assert driver.status(*call) == UNSUPPORTED


def a_lost_device(levers: Levers) -> None:
    fatal = (4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911)
    for result in fatal:
        with Driver(driver="cuda", devices=2) as driver:
            levers.fail("cuStreamQuery", result)
            assert driver.status("stream_query", 0, 5) == DEVICE_LOST
            calls = levers.seen("cuStreamQuery")
            assert driver.status("stream_query", 0, 5) == DEVICE_LOST
            assert refusal(lambda: driver.memory(0)).reason == "CUDA device 0 is lost"
            assert levers.seen("cuStreamQuery") == calls  # it is not asked any more
            assert driver.status("stream_query", 1, 5) == OK


def streams_and_events(levers: Levers) -> None:
    with Driver(driver="cuda") as driver:
        event = driver.event()
        levers.busy(5, True)
        driver.call("event_record", 0, event, 5)
        assert driver.status("stream_query", 0, 5) == NOT_READY
        assert driver.status("event_query", 0, event) == NOT_READY
        driver.call("stream_wait", 0, 6, event)
        assert driver.status("stream_query", 0, 6) == NOT_READY
        driver.call("event_sync", 0, event)
        assert driver.status("event_query", 0, event) == OK
        driver.call("device_sync", 0)
        assert driver.status("stream_query", 0, 6) == OK
        assert driver.ask("capturing", 0, 5) == 0
        levers.capture(5, True)
        assert driver.ask("capturing", 0, 5) == 1
        assert driver.ask("capturing", 0, 6) == 0
        assert driver.ask("capturing", 0, 0) == 1  # it cannot be told, so nothing may be asked
        levers.capture(5, False)
        assert driver.ask("capturing", 0, 0) == 0


def copies_wait_for_all_work(levers: Levers) -> None:
    with Driver(driver="cuda") as driver:
        base = driver.reserve(SIZE)
        driver.map(base, SIZE, driver.create(SIZE))
        levers.busy(5, True)
        driver.put(base, b"waits")
        assert driver.status("stream_query", 0, 5) == OK
        levers.busy(5, True)
        assert driver.get(base, 5) == b"waits"
        assert driver.status("stream_query", 0, 5) == OK


def an_allocator_lives_on_it(levers: Levers) -> None:
    """Contents stay where they are while free pages move: of 128 MiB only 8 are not live."""
    rng = random.Random(7)
    live: list[tuple[int, int, bytes]] = []
    with closing(Allocator(driver="cuda", checking=True, check=2)) as allocator:
        for step in range(300):
            size = rng.choice([2, 4, 10, 16]) * MiB
            while live and sum(size for _, size, _ in live) + size > 120 * MiB:
                pointer, old, mark = live.pop(rng.randrange(len(live)))
                assert ctypes.string_at(pointer, 16) == mark
                assert ctypes.string_at(pointer + old - 16, 16) == mark
                allocator.free(pointer)
            pointer = allocator.alloc(size, stream=step % 3)
            mark = rng.randbytes(16)
            ctypes.memmove(pointer, mark, 16)
            ctypes.memmove(pointer + size - 16, mark, 16)
            live.append((pointer, size, mark))
        for pointer, size, mark in live:
            assert ctypes.string_at(pointer, 16) == mark
            assert ctypes.string_at(pointer + size - 16, 16) == mark
            allocator.free(pointer)
        allocator.check()
        stats = allocator.stats()
        assert stats["num_ooms"] == 0
        assert stats["steals.move"] + stats["steals.alias"] > 0
    assert levers.seen("not relaxed") == 0
    assert levers.seen("pushed") == 0
    assert levers.seen("cuMemUnmap") > 0


if __name__ == "__main__":
    globals()[sys.argv[1]](Levers())
