# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Writes down what the model of torch's allocator does, in the form of torch's snapshots."""

from __future__ import annotations

from typing import Any

from vmm.sim.models.torch_blocks import FREE, LIVE, PENDING, Block, Pool
from vmm.sim.models.torch_default import TorchDefault

STATES = {FREE: "inactive", LIVE: "active_allocated", PENDING: "active_awaiting_free"}


class Recorder(TorchDefault):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.events: list[dict[str, Any]] = []

    def _write(self, action: str, block: Block, size: int) -> None:
        self.events.append(
            {
                "action": action,
                "addr": block.address,
                "size": size,
                "stream": block.stream,
                "pool_id": (0, block.pool.number),
                "frames": [{"filename": "a.py", "line": len(self.events) % 7, "name": "f"}],
            }
        )

    def add_segment(self, address: int, size: int, stream: int, pool: Pool) -> Block:
        block = super().add_segment(address, size, stream, pool)
        self._write("segment_alloc", block, size)
        return block

    def release_segment(self, block: Block) -> None:
        super().release_segment(block)
        self._write("segment_free", block, block.size)

    def place(self, block: Block, rounded: int, size: int) -> None:
        super().place(block, rounded, size)
        self._write("alloc", block, size)

    def request_free(self, block: Block) -> None:
        super().request_free(block)
        self._write("free_requested", block, block.requested)

    def complete_free(self, block: Block) -> None:
        if block.state == LIVE:
            self.request_free(block)
        self._write("free_completed", block, block.requested)
        super().complete_free(block)

    def snapshot(self, keep: int | None = None, **settings: Any) -> dict[str, Any]:
        """As ``torch.cuda.memory._snapshot()`` has it, with the last `keep` events only."""
        segments: list[dict[str, Any]] = []
        for block in self.blocks():
            if block.previous is None:
                segments.append(
                    {
                        "device": 0,
                        "address": block.address,
                        "total_size": 0,
                        "stream": block.stream,
                        "segment_type": "small" if block.pool.small else "large",
                        "segment_pool_id": (0, block.pool.number),
                        "is_expandable": False,
                        "blocks": [],
                    }
                )
            segments[-1]["total_size"] += block.size
            segments[-1]["blocks"].append(
                {
                    "address": block.address,
                    "size": block.size,
                    "requested_size": block.requested,
                    "state": STATES[block.state],
                    "frames": [],
                }
            )
        events = self.events if keep is None else self.events[len(self.events) - keep :]
        return {
            "segments": segments,
            "device_traces": [events],
            "allocator_settings": settings,
        }
