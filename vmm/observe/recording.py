# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a recording has seen, and the forms it can be written in."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.sim.trace import Trace

Path = str | os.PathLike[str]


@dataclass(repr=False)
class Recording:
    """The events of a recording, one trace per device.

    ``traces`` holds a `vmm.sim.trace.Trace` by device number, ``lost`` the number of events that
    the ring had no room for (the oldest). Files appear whole or not at all.
    """

    traces: dict[int, Trace] = field(default_factory=dict)
    lost: int = 0

    def __repr__(self) -> str:
        return f"Recording(devices={sorted(self.traces)}, events={len(self)}, lost={self.lost})"

    @property
    def trace(self) -> Trace:
        """The trace of the only device, or of device 0 if there are several."""
        return self.of_device(0 if 0 in self.traces else min(self.traces, default=0))

    def of_device(self, device: int) -> Trace:
        """The trace of one device. Raises `vmm.errors.Invalid` if nothing was recorded there."""
        if device not in self.traces:
            seen = ", ".join(map(str, sorted(self.traces))) or "none"
            raise Invalid(f"device: {device} has no events; devices with events: {seen}")
        return self.traces[device]

    @classmethod
    def from_spool(cls, folder: Path) -> Recording:
        """What the folder of a spool holds, also if the process that wrote it died.

        Blocks and pages that were there before and that no event touched are not known then. Raises
        `vmm.errors.FormatError`, OSError.
        """
        import numpy as np

        from vmm.observe import convert, spool

        events, tables = spool.read(folder)
        tags = tables.get("tags", [""])
        return cls(
            {
                device: convert.to_trace(
                    events,
                    device=device,
                    tag_text=lambda tag: tags[tag] if tag < len(tags) else f"tag {tag}",
                    streams=tables["streams"],
                    stacks=tables["stacks"],
                    min_size=tables["min_size"],
                    lost=tables["lost"],
                )
                for device in np.unique(events["device"]).tolist()
            },
            tables.get("lost", 0),
        )

    def __len__(self) -> int:
        """How many events there are, without the rows that describe the start."""
        return sum(len(t) - int(t.header["initial_rows"]) for t in self.traces.values())

    def save(self, path: Path, device: int | None = None) -> None:
        """Writes a vmm-trace (``*.vmmtrace``, or ``*.vmmtrace.gz`` compressed) of one device."""
        from vmm.sim import trace_file

        trace_file.write(path, self._one(device))

    def to_torch_snapshot(
        self, path: Path, *, pending_name: str = "active_awaiting_free"
    ) -> dict[str, Any]:
        """Writes a snapshot for pytorch.org/memory_viz and `torch.cuda._memory_viz`, all devices.

        `pending_name` is the state of freed blocks that somebody may still use: torch documents the
        default, the page of today looks for ``active_pending_free``. Returns what was written.
        """
        from vmm.observe import torch_pickle

        data = torch_pickle.snapshot_of(self.traces, pending_name=pending_name)
        torch_pickle.write(path, data)
        return data

    def to_chrome(self, path: Path, *, max_points: int = 200_000) -> None:
        """Writes counters and markers as a Chrome trace (JSON; ``.gz`` compressed), all devices.

        At most `max_points` counter values per device are written; the highest and the lowest of
        every stretch are among them.
        """
        from vmm.observe import chrome_trace

        chrome_trace.write(path, self.traces, max_points=max_points)

    def to_csv(self, path: Path, device: int | None = None) -> None:
        """Writes one row per event with the totals after it (``.gz`` compressed)."""
        from vmm.observe import csv_table

        csv_table.write(path, self._one(device))

    def _one(self, device: int | None) -> Trace:
        return self.trace if device is None else self.of_device(device)
