# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a model of an allocator offers to a replay."""

from __future__ import annotations

from typing import Protocol

from vmm.errors import OutOfMemory

__all__ = ["Model", "OutOfMemory"]


class Model(Protocol):
    """The allocator of one device, of ``capacity`` bytes or without limit (None).

    ``reserved``: bytes held from the driver. ``live``: rounded bytes of the allocations.
    ``counters``: device_alloc, device_free, syncs, retries, steals, waits, driver_ns.
    """

    name: str

    @property
    def reserved(self) -> int: ...
    @property
    def live(self) -> int: ...
    @property
    def counters(self) -> dict[str, int]: ...

    def alloc(self, id: int, size: int, stream: int, pool: int) -> int:
        """Places `size` bytes and returns the address. Raises OutOfMemory."""
        ...

    def free(self, id: int) -> None:
        """Ends an allocation."""

    def record_stream(self, id: int, stream: int) -> None:
        """Another stream uses an allocation, too."""

    def sync(self, stream: int) -> None:
        """The host has waited for a stream."""

    def kernel(self, stream: int, ns: int) -> None:
        """A stream has more to do, `ns` long."""

    def step(self) -> None:
        """A step of training ended."""

    def advance(self, t_ns: int) -> None:
        """The time is `t_ns` now."""
