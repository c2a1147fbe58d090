# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The observation tool under the names that Paddle gives it.

Source: ``paddle.device.cuda.MemoryAnalysisTool`` of Paddle 3.3 (#76499, #76647).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from vmm.errors import Invalid, Unsupported
from vmm.observe.curves import curves
from vmm.observe.recording import Recording
from vmm.observe.state import FREE_MAPPED, FREE_UNMAPPED, State, read_state
from vmm.observe.summary_tables import summary_text
from vmm.observe.target import device_index, resolve

if TYPE_CHECKING:
    from vmm.allocator import Allocator

TSV_COLUMNS = ("allocator", "action", "sequence", "size", "allocated", "reserved")
_ACTIONS = {ord("a"): "Alloc", ord("f"): "Free"}


class MemoryAnalysisTool:
    """Free blocks, all blocks, the summary and the record of allocations of an allocator.

    A block counts as free if pages are behind it. An allocator in Paddle's sense is an arena here.
    Every method takes ``device`` (None: 0) and ``allocator`` (None: the one that is enabled).
    """

    @staticmethod
    def vmm_max_free_size(
        device: object = None, n: int = 1, *, allocator: Allocator | None = None
    ) -> tuple[int, int]:
        """The largest free block, and the sum of the `n` largest, bytes.

        Raises `vmm.errors.Invalid` if `n` is not a whole number from 1.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise Invalid(f"n: must be a whole number from 1, but is {n!r}")
        state = _state(device, allocator)
        sizes = sorted((row.size for row in state.blocks if row.state == FREE_MAPPED), reverse=True)
        return (sizes[0] if sizes else 0), sum(sizes[:n])

    @staticmethod
    def vmm_free_block_info(
        device: object = None, *, allocator: Allocator | None = None
    ) -> list[list[tuple[int, int]]]:
        """Per arena, (size, address) of its free blocks in address order."""
        state = _state(device, allocator)
        return [
            [
                (row.size, row.address)
                for row in state.blocks
                if row.arena == arena and row.state == FREE_MAPPED
            ]
            for arena in _arenas(state)
        ]

    @staticmethod
    def vmm_all_block_info(
        device: object = None, *, allocator: Allocator | None = None
    ) -> list[list[tuple[int, int, bool]]]:
        """Per arena, (size, address, is free) of its blocks with pages, in address order."""
        state = _state(device, allocator)
        return [
            [
                (row.size, row.address, row.state == FREE_MAPPED)
                for row in state.blocks
                if row.arena == arena and row.state != FREE_UNMAPPED
            ]
            for arena in _arenas(state)
        ]

    @staticmethod
    def memory_summary(device: object = None, *, allocator: Allocator | None = None) -> str:
        """The text of `vmm.summary`."""
        return summary_text(_state(device, allocator))

    @staticmethod
    def allocate_record_table(
        recording: Recording, path: str | os.PathLike[str], device: int | None = None
    ) -> None:
        """Writes allocations and frees as tab-separated values, bytes, with the totals after each.

        The columns are ``allocator`` (the pool), ``action`` (Alloc or Free), ``sequence``,
        ``size``, ``allocated`` and ``reserved`` (mapped pages).
        """
        from vmm.sim.atomic_file import new_file

        lines = ["\t".join(TSV_COLUMNS)]
        for sequence, row in enumerate(_rows(recording, device)):
            pool, op, *sizes = row
            lines.append("\t".join(map(str, (pool, _ACTIONS[op], sequence, *sizes))))
        with new_file(path) as file:
            file.write(("\n".join(lines) + "\n").encode())

    @staticmethod
    def allocate_record_plot(
        recording: Recording, path: str | os.PathLike[str], device: int | None = None
    ) -> None:
        """Draws a PNG: request sizes from below, allocated and reserved bytes from above.

        Raises `vmm.errors.Unsupported` without matplotlib (the extra ``plot``).
        """
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError:
            raise Unsupported(
                "allocate_record_plot needs matplotlib: pip install 'paddle-on-torch[plot]'"
            ) from None
        from vmm.sim.atomic_file import new_file

        rows = _rows(recording, device)
        at = range(len(rows))
        mib = 1 / (1 << 20)
        figure = Figure(figsize=(12, 6), layout="constrained")
        below = figure.add_subplot()
        asked = [size * mib if op == ord("a") else 0.0 for _, op, size, _, _ in rows]
        below.vlines(at, 0, asked, color="tab:green", linewidth=0.8, label="request")
        below.set(xlabel="event", ylabel="request (MiB)", ylim=(0, 2 * max([1.0, *asked])))
        above = below.twinx()
        reserved = [row[4] * mib for row in rows]
        above.fill_between(at, reserved, color="tab:orange", alpha=0.4, label="reserved")
        above.fill_between(
            at, [row[3] * mib for row in rows], color="tab:blue", alpha=0.4, label="allocated"
        )
        above.set(ylabel="allocated and reserved (MiB)", ylim=(2 * max([1.0, *reserved]), 0))
        figure.legend(loc="center right")
        with new_file(path) as file:
            figure.savefig(file, format="png")


def _state(device: object, allocator: Allocator | None) -> State:
    return read_state(resolve(allocator), device_index(device, allocator))


def _arenas(state: State) -> list[int]:
    return sorted({row.arena for row in state.arenas})


def _rows(recording: Recording, device: int | None) -> list[tuple[int, int, int, int, int]]:
    """(pool, op, size, allocated, mapped) of every alloc and free after the start."""
    trace = recording.trace if device is None else recording.of_device(device)
    totals = curves(trace)
    shown = trace.is_op("af")
    shown[: int(trace.header["initial_rows"])] = False
    columns = (trace.pool, trace.op, trace.bytes, totals.allocated, totals.mapped)
    return list(zip(*(column[shown].tolist() for column in columns), strict=True))
