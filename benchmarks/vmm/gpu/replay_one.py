# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Replays one trace in the allocator of this process."""

from __future__ import annotations

import time
from typing import Any, Protocol

from benchmarks.vmm.gpu.context import SkippedError


class Memory(Protocol):
    """Where the requests go. An allocation is any object; dropping it is not enough to free it."""

    def allocate(self, size: int, stream: int) -> Any: ...
    def free(self, block: Any) -> None: ...
    def record(self, block: Any, stream: int) -> None: ...
    def kernel(self, stream: int, ns: int) -> None: ...
    def wait(self, stream: int) -> None: ...
    def step(self) -> None: ...
    def figures(self) -> dict[str, int]: ...


class TorchMemory:
    """Tensors of bytes on CUDA, from whatever allocator torch has."""

    def __init__(self, ours: Any, capacity: int | None) -> None:
        import torch

        self._torch: Any = torch
        self._ours = ours
        if ours is None and capacity is not None:
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, capacity / total))
        self._streams = {0: torch.cuda.current_stream()}
        self._cycles = self._cycles_per_ns()
        torch.cuda.reset_peak_memory_stats() if ours is None else ours.reset_peak()

    def _cycles_per_ns(self) -> float:
        torch = self._torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(10_000_000)
        end.record()
        torch.cuda.synchronize()
        return 10_000_000 / (begin.elapsed_time(end) * 1e6)

    def _on(self, stream: int) -> Any:
        if stream not in self._streams:
            self._streams[stream] = self._torch.cuda.Stream()
        return self._torch.cuda.stream(self._streams[stream])

    def allocate(self, size: int, stream: int) -> Any:
        with self._on(stream):
            try:
                return [self._torch.empty(size, dtype=self._torch.uint8, device="cuda")]
            except (self._torch.OutOfMemoryError, MemoryError):
                return None
            except RuntimeError as error:
                if "out of memory" in str(error):
                    return None
                raise

    def free(self, block: Any) -> None:
        block.clear()  # the only reference to the tensor

    def record(self, block: Any, stream: int) -> None:
        with self._on(stream):
            block[0].record_stream(self._streams[stream])

    def kernel(self, stream: int, ns: int) -> None:
        with self._on(stream):
            self._torch.cuda._sleep(int(ns * self._cycles))

    def wait(self, stream: int) -> None:
        with self._on(stream):
            self._streams[stream].synchronize()

    def step(self) -> None:
        if self._ours is not None:
            self._ours.mark_step()

    def figures(self) -> dict[str, int]:
        ours = self._ours
        found = self._torch.cuda.memory_stats() if ours is None else ours.stats()
        names = {
            "max_allocated": "allocated_bytes.all.peak",
            "max_reserved": "reserved_bytes.all.peak",
            "retries": "num_alloc_retries",
            "syncs": "num_sync_all_streams",
        }
        return {name: int(found.get(key, 0)) for name, key in names.items()}


class RehearsedMemory:
    """The same on the null driver: nothing is allocated."""

    def __init__(self, ours: Any) -> None:
        self._ours = ours

    def allocate(self, size: int, stream: int) -> Any:
        from vmm.errors import OutOfMemory

        try:
            return [self._ours.alloc(size, stream=stream)]
        except OutOfMemory:
            return None

    def free(self, block: Any) -> None:
        self._ours.free(block.pop())

    def record(self, block: Any, stream: int) -> None:
        self._ours.record_stream(block[0], stream)

    def kernel(self, stream: int, ns: int) -> None:
        self._ours.clock_kernel(stream, ns)

    def wait(self, stream: int) -> None:
        pass

    def step(self) -> None:
        self._ours.mark_step()

    def figures(self) -> dict[str, int]:
        found = self._ours.stats()
        return {
            "max_allocated": found["allocated_bytes.all.peak"],
            "max_reserved": found["reserved_bytes.all.peak"],
            "retries": found["num_alloc_retries"],
            "syncs": found["num_sync_all_streams"],
        }


def play(trace: Any, memory: Memory, shorten: float) -> dict[str, int]:
    """Every event in order. A request that fails is counted, and its later events are left out."""
    blocks: dict[int, Any] = {}
    failed = 0
    columns = (trace.op, trace.id, trace.bytes, trace.stream)
    for op, number, size, stream in zip(*(column.tolist() for column in columns), strict=True):
        letter = chr(op)
        if letter == "a":
            block = memory.allocate(size, stream) if size else None
            if block is not None:
                blocks[number] = block
            failed += size > 0 and block is None
        elif letter == "f" and number in blocks:
            memory.free(blocks.pop(number))
        elif letter == "r" and number in blocks:
            memory.record(blocks[number], stream)
        elif letter == "k":
            memory.kernel(stream, int(size * shorten))
        elif letter == "s":
            memory.wait(stream)
        elif letter == "m":
            memory.step()
    return {"ooms": failed}


def run(
    kind: str, path: str, capacity: int | None, seconds: float, rehearse: bool
) -> dict[str, Any]:
    """Replays the file; kernels together take at most `seconds`. Percent and counts."""
    from vmm.sim import trace_file

    trace = trace_file.read(path)
    live = int(trace.live(512).max())
    kernels = int(trace.bytes[trace.op == ord("k")].sum())
    ours = None
    if rehearse:
        from vmm.allocator import Allocator

        ours = Allocator(driver="null", device_bytes=4 * live, limit=capacity or 0)
        memory: Memory = RehearsedMemory(ours)
    else:
        if kind == "ours":
            from vmm.torch_hooks.enable import enable

            ours = enable("cuda", limit=capacity or 0)
        import torch

        free, _ = torch.cuda.mem_get_info()
        if live * 1.05 > free:
            raise SkippedError(f"{live >> 20} MiB are live at once, {free >> 20} MiB are free")
        memory = TorchMemory(ours, capacity)
    began = time.perf_counter()
    counts = play(trace, memory, min(1.0, seconds * 1e9 / max(1, kernels)))
    took = time.perf_counter() - began
    figures = memory.figures()
    waste = 1 - figures["max_allocated"] / max(1, figures["max_reserved"])
    steals = {}
    if ours is not None:
        stats = ours.stats()
        steals = {"steals": stats["steals.move"] + stats["steals.alias"], "waits": stats["waits"]}
    return {
        "peak_gib": round(live / 2**30, 2),
        "fragmentation_percent": round(100 * waste, 2),
        **counts,
        "retries": figures["retries"],
        "syncs": figures["syncs"],
        "seconds": round(took, 2),
        **(steals or {"steals": 0, "waits": 0}),
    }
