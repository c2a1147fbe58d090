# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Work on streams that writes numbers into memory and finds them again.

`CudaWork` queues operations of torch on a GPU. `HostWork` queues the kernels of the host driver,
whose streams are virtual, so that the same checks can be rehearsed on a machine without a GPU.
"""

from __future__ import annotations

from typing import Any, Protocol

from benchmarks.vmm.gpu.raw_driver import RawDriver


class Work(Protocol):
    streams: list[int]  # two handles
    driver: str  # the option that opens a driver of the kind that can touch this memory

    def write(self, stream: int, at: int, size: int, stamp: int) -> None:
        """Queues a kernel that fills `size` bytes at address `at` with the 64-bit `stamp`."""

    def expect(self, stream: int, at: int, size: int, stamp: int) -> None:
        """Queues a kernel that counts the words which are not `stamp`."""

    def busy(self, stream: int, ns: int) -> None:
        """Queues a kernel that does nothing for about `ns` nanoseconds."""

    def after(self, stream: int, other: int) -> None:
        """Makes what is queued on `stream` from now on run after what `other` has queued."""

    def mismatches(self) -> int:
        """Waits for all work. How many of the expected words were others, since the last call."""


class RawMemory:
    """An address range as torch wants to be told about it: words of 8 bytes."""

    def __init__(self, at: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size // 8,),
            "typestr": "<i8",
            "data": (at, False),
            "version": 3,
        }


class CudaWork:
    driver = "driver=cuda"

    def __init__(self) -> None:
        import torch

        self._torch: Any = torch
        # Two streams of our own: the default stream orders itself against all others.
        self._streams = {one.cuda_stream: one for one in (torch.cuda.Stream() for _ in range(2))}
        self.streams = list(self._streams)
        self._wrong = torch.zeros(2, dtype=torch.int64, device="cuda")
        self._cycles_per_ns = self._calibrate()

    def _calibrate(self) -> float:
        """Cycles that torch's sleeping kernel spends in a nanosecond."""
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        torch.cuda.synchronize()
        return 10_000_000 / (begin.elapsed_time(end) * 1e6)

    def words(self, at: int, size: int) -> Any:
        return self._torch.as_tensor(RawMemory(at, size), device="cuda")

    def write(self, stream: int, at: int, size: int, stamp: int) -> None:
        with self._torch.cuda.stream(self._streams[stream]):
            self.words(at, size).fill_(stamp)

    def expect(self, stream: int, at: int, size: int, stamp: int) -> None:
        with self._torch.cuda.stream(self._streams[stream]):
            wrong = self._wrong[self.streams.index(stream)]
            wrong += (self.words(at, size) != stamp).sum()

    def busy(self, stream: int, ns: int) -> None:
        with self._torch.cuda.stream(self._streams[stream]):
            self._torch.cuda._sleep(int(ns * self._cycles_per_ns))

    def after(self, stream: int, other: int) -> None:
        self._streams[stream].wait_stream(self._streams[other])

    def mismatches(self) -> int:
        self._torch.cuda.synchronize()
        found = int(self._wrong.sum())
        self._wrong.zero_()
        self._torch.cuda.synchronize()
        return found


class HostWork:
    """Kernels of the host driver. They look at the first and last word of each page they touch."""

    driver = "driver=host\ndevice_bytes=2GiB\nchecking=1"

    def __init__(self) -> None:
        self.streams = [1, 2]
        self._driver: RawDriver | None = None
        self._seen = 0

    def attach(self, driver: RawDriver) -> None:
        self._driver = driver
        self._seen = 0

    def _kernel(self, stream: int, at: int, size: int, write: bool, stamp: int) -> None:
        assert self._driver is not None
        self._driver.host_kernel(stream, at, size, int(write), stamp, 1000)

    def write(self, stream: int, at: int, size: int, stamp: int) -> None:
        self._kernel(stream, at, size, True, stamp)

    def expect(self, stream: int, at: int, size: int, stamp: int) -> None:
        self._kernel(stream, at, size, False, stamp)

    def busy(self, stream: int, ns: int) -> None:
        assert self._driver is not None
        self._driver.clock_kernel(stream, ns)

    def after(self, stream: int, other: int) -> None:
        assert self._driver is not None
        event = self._driver.event_create()
        self._driver.event_record(event, other)
        self._driver.stream_wait(stream, event)
        self._driver.event_destroy(event)

    def mismatches(self) -> int:
        assert self._driver is not None
        self._driver.device_sync()
        lines = self._driver.host_violations().decode().splitlines()
        found, self._seen = len(lines) - self._seen, len(lines)
        return found


def open_both(rehearse: bool) -> tuple[RawDriver, CudaWork | HostWork]:
    """A raw driver and work that can touch its memory."""
    if not rehearse:
        work = CudaWork()  # first, so that torch's context is the one that the driver finds
        return RawDriver(work.driver), work
    host = HostWork()
    driver = RawDriver(host.driver)
    host.attach(driver)
    return driver, host
