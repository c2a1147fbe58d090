# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The allocator as an object, thin over the C interface: for tools, tests and other drivers."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vmm import native
from vmm.errors import Dead, Invalid

if TYPE_CHECKING:
    import numpy as np

ALL = 2**64 - 1


class Block(NamedTuple):
    """A piece of address range. Sizes in bytes; `fence` counts open fences of a free block."""

    address: int
    size: int
    requested: int
    stream: int
    arena: int
    pool: int
    tag: str
    stack: int
    state: str  # active, pending, free (pages behind it), unmapped
    asleep: bool
    fence: int


class Slot(NamedTuple):
    """A virtual page: the physical page behind it or -1, and its pins by reason."""

    address: int
    page: int
    arena: int
    stale: bool
    pins: dict[str, int]


class Arena(NamedTuple):
    """An address range and how much of it is in use, bytes."""

    base: int
    reserved: int
    used: int
    page_size: int
    arena: int
    pool: int
    small: bool
    asleep: bool
    pool_name: str


class ReplayResult(NamedTuple):
    """What a replay did. `addresses` by event, 0 where nothing was allocated; None unless asked."""

    done: int
    ooms: int
    first_oom: int | None
    elapsed_ns: int
    addresses: np.ndarray[Any, Any] | None


def config_text(config: str | Mapping[str, Any] | None, keys: Mapping[str, Any]) -> str:
    """The text form of a configuration; values that hold commas go into parentheses."""

    def value_text(value: Any) -> str:
        if isinstance(value, bool):
            return str(int(value))
        text = str(value)
        return f"({text})" if "," in text or ":" in text else text

    parts = [config] if isinstance(config, str) and config else []
    rows = {**(config if isinstance(config, Mapping) else {}), **keys}
    parts += [f"{name}:{value_text(value)}" for name, value in rows.items()]
    return ",".join(parts)


class Allocator:
    """An allocator of its own: pages, arenas and streams are shared with nobody.

    Args:
        config: ``"key:value,key:value"`` or a mapping; see docs/vmm.md for the keys.
        keys: the same as keywords; they win.

    Raises:
        Invalid: an unknown key or a value out of range.
        Unsupported: the driver does not work on this machine.
    """

    def __init__(self, config: str | Mapping[str, Any] | None = None, **keys: Any) -> None:
        self._core = native.library()
        self._handle: int | None = None
        self._callbacks: dict[Callable[[int, int], bool], Any] = {}
        made = ctypes.c_void_p()
        text = config_text(config, keys)
        native.check(self._core.vmm_create(text.encode(), ctypes.byref(made)))
        self._handle = made.value

    @property
    def handle(self) -> int:
        """The ``vmm_allocator*`` as a number."""
        if self._handle is None:
            raise Dead("allocator: it was closed")
        return self._handle

    def close(self) -> None:
        """Gives everything back to the driver; live addresses become invalid."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._core.vmm_destroy(handle)

    def __enter__(self) -> Allocator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Allocation

    def alloc(
        self,
        size: int,
        *,
        stream: int = 0,
        pool: int = 0,
        tag: str | None = None,
        device: int = 0,
    ) -> int:
        """The address of `size` bytes; 0 for no bytes.

        Raises:
            OutOfMemory: with who holds what.
            Invalid: no such device or pool, or the pool is asleep.
        """
        if size < 0:
            raise Invalid(f"size: it must not be negative, but is {size}")
        number = 0 if tag is None else self._core.vmm_intern_tag(tag.encode())
        request = native.Request(size, stream, device, pool, number, 0)
        out = ctypes.c_void_p()
        native.check(self._core.vmm_allocate(self.handle, ctypes.byref(request), ctypes.byref(out)))
        return out.value or 0

    def free(self, address: int, device: int = 0) -> None:
        """Frees a live allocation. Raises Invalid for any other address."""
        native.check(self._core.vmm_deallocate(self.handle, device, address))

    def record_stream(self, address: int, stream: int, device: int = 0) -> None:
        """Says that `stream` uses the allocation as well."""
        native.check(self._core.vmm_record_stream(self.handle, device, address, stream))

    def block_of(self, address: int, device: int = 0) -> tuple[int, int, int]:
        """(base, size, requested) of the live allocation that an address lies in."""
        base, size, requested = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
        native.check(
            self._core.vmm_block_of(
                self.handle,
                device,
                address,
                ctypes.byref(base),
                ctypes.byref(size),
                ctypes.byref(requested),
            )
        )
        return base.value or 0, size.value, requested.value

    # Pools, pins, sleep

    def pool_create(
        self, name: str, *, cap: int = 0, shared_pages: bool = False, device: int = 0
    ) -> int:
        """A private pool; `cap` bounds its physical bytes, 0: no bound of its own."""
        out = ctypes.c_uint32()
        native.check(
            self._core.vmm_pool_create(
                self.handle, device, name.encode(), cap, shared_pages, ctypes.byref(out)
            )
        )
        return out.value

    def pool_release(self, pool: int, device: int = 0) -> None:
        """The pool goes as soon as nothing in it is live."""
        native.check(self._core.vmm_pool_release(self.handle, device, pool))

    def pool_sleep(self, pool: int, keep: bool = False, device: int = 0) -> int:
        """Gives the physical pages of a pool back; returns their bytes. Addresses stay.

        With `keep` the content waits in host memory; without, it is undefined after waking.
        """
        return self._bytes(self._core.vmm_pool_sleep, device, pool, keep)

    def pool_wake(self, pool: int, device: int = 0) -> None:
        """Brings the pages of a sleeping pool back, all or none."""
        native.check(self._core.vmm_pool_wake(self.handle, device, pool))

    def pin(self, address: int, size: int, reason: str = "user", device: int = 0) -> None:
        """Pages under the range never move; reason: ipc, registered, graph or user."""
        native.check(self._core.vmm_pin(self.handle, device, address, size, self._reason(reason)))

    def unpin(self, address: int, size: int, reason: str = "user", device: int = 0) -> None:
        """Takes one pin away."""
        native.check(self._core.vmm_unpin(self.handle, device, address, size, self._reason(reason)))

    # Defragmentation and returning memory

    def compact(
        self, target: int = 0, release: bool = False, sync: bool = True, device: int = 0
    ) -> int:
        """Gathers free pages into a run of `target` bytes (0: all); returns the bytes moved."""
        return self._bytes(self._core.vmm_compact, device, target, release, sync)

    def trim(self, nbytes: int | None = None, device: int = 0) -> int:
        """Gives up to `nbytes` of free physical memory back (None: all); returns how much."""
        return self._bytes(self._core.vmm_trim, device, ALL if nbytes is None else nbytes)

    def mark_step(self, device: int = 0) -> None:
        """The end of a training step."""
        native.check(self._core.vmm_mark_step(self.handle, device))

    def set_limit(self, nbytes: int, device: int = 0) -> None:
        """A hard limit on physical bytes, 0: none of our own."""
        native.check(self._core.vmm_set_limit(self.handle, device, nbytes))

    def plan(self, sizes: Iterable[int], stream: int = 0, device: int = 0) -> str:
        """Whether requests of these sizes, all live together, would fit. Changes nothing.

        Returns:
            ``"fits"``, ``"fits_after_steal"`` or ``"does_not_fit"``.
        """
        array = self._sizes(sizes)
        out = ctypes.c_int()
        native.check(
            self._core.vmm_plan(self.handle, device, array, len(array), stream, ctypes.byref(out))
        )
        return native.FITS[out.value]

    def prefetch(self, sizes: Iterable[int], stream: int = 0, device: int = 0) -> None:
        """Does the mapping that such requests would need, now."""
        array = self._sizes(sizes)
        native.check(self._core.vmm_prefetch(self.handle, device, array, len(array), stream))

    def on_oom(self, callback: Callable[[int, int], bool]) -> None:
        """Calls ``callback(device, size)`` when a request cannot be served; true: try again."""

        def answer(user: int | None, device: int, size: int) -> int:
            return int(bool(callback(device, size)))

        call = native.OomCallback(answer)
        native.check(self._core.vmm_on_oom(self.handle, call, None))
        self._callbacks[callback] = call

    def remove_on_oom(self, callback: Callable[[int, int], bool]) -> None:
        """Takes a callback away. Raises Invalid if it was not registered."""
        if callback not in self._callbacks:
            raise Invalid("callback: it is not registered")
        native.check(self._core.vmm_remove_on_oom(self.handle, self._callbacks[callback], None))
        del self._callbacks[callback]

    # Seeing

    def stats(self, device: int = 0) -> dict[str, int]:
        """Every counter by name; torch's names where torch counts the same."""
        count = self._core.vmm_stat_count()
        values = (ctypes.c_uint64 * count)()
        native.check(self._core.vmm_stats(self.handle, device, values, count))
        return dict(zip(stat_names(), values, strict=True))

    def reset_peak(self, device: int = 0) -> None:
        """Peaks start again from what is current."""
        native.check(self._core.vmm_reset_peak(self.handle, device))

    def blocks(self, device: int = 0) -> list[Block]:
        """Every block, arena by arena, in address order."""
        return [
            Block(
                row.address,
                row.size,
                row.requested,
                row.stream,
                row.arena,
                row.pool,
                tag_text(row.tag),
                row.stack,
                native.BLOCK_STATES[row.state],
                bool(row.asleep),
                row.fence,
            )
            for row in self._rows(self._core.vmm_blocks, native.BlockInfo, device)
        ]

    def slots(self, device: int = 0) -> list[Slot]:
        """Every virtual page that is in use."""
        return [
            Slot(
                row.address,
                row.page,
                row.arena,
                bool(row.stale),
                dict(zip(native.PIN_REASONS, row.pins, strict=True)),
            )
            for row in self._rows(self._core.vmm_slots, native.SlotInfo, device)
        ]

    def arenas(self, device: int = 0) -> list[Arena]:
        """Every address range."""
        return [
            Arena(
                row.base,
                row.reserved,
                row.used,
                row.page_size,
                row.arena,
                row.pool,
                bool(row.small),
                bool(row.asleep),
                row.pool_name.decode(errors="replace"),
            )
            for row in self._rows(self._core.vmm_arenas, native.ArenaInfo, device)
        ]

    def streams(self) -> list[int]:
        """Stream handles in the order of their index in recorded events."""
        return [int(row) for row in self._rows(self._core.vmm_streams, ctypes.c_uint64, None)]

    def check(self, device: int = 0) -> None:
        """Raises Invalid with the first invariant that is broken."""
        native.check(self._core.vmm_check(self.handle, device))

    def record_start(
        self, capacity: int = 1 << 20, min_size: int = 0, stacks: bool = False
    ) -> None:
        """Starts a ring of the last `capacity` events; an earlier recording is dropped."""
        native.check(self._core.vmm_record_start(self.handle, capacity, min_size, stacks))

    def record_stop(self) -> None:
        """Stops recording; what is in the ring can still be read."""
        native.check(self._core.vmm_record_stop(self.handle))

    def record_read(self, most: int = 1 << 20) -> tuple[np.ndarray[Any, Any], int]:
        """Takes up to `most` events, the oldest first; and how many were overwritten."""
        import numpy as np

        events = np.zeros(most, np.dtype(native.Event))
        count, lost = ctypes.c_size_t(), ctypes.c_uint64()
        native.check(
            self._core.vmm_record_read(
                self.handle, events.ctypes.data, most, ctypes.byref(count), ctypes.byref(lost)
            )
        )
        return events[: count.value].copy(), lost.value

    def note(self, text: str, device: int = 0) -> None:
        """Puts a text into the recording."""
        number = self._core.vmm_intern_tag(text.encode())
        native.check(self._core.vmm_note(self.handle, device, number))

    # Replay and the logical clock

    def replay(
        self,
        events: np.ndarray[Any, Any],
        ids: int,
        stop_at_oom: bool = False,
        addresses: bool = False,
    ) -> ReplayResult:
        """Runs a trace on device 0.

        Args:
            events: structured array with the fields of ``native.ReplayEvent``.
            ids: one more than the largest allocation number.
        """
        import numpy as np

        events = np.ascontiguousarray(events, np.dtype(native.ReplayEvent))
        places = np.zeros(len(events), np.uint64) if addresses else None
        counts = native.ReplayCounts()
        native.check(
            self._core.vmm_replay(
                self.handle,
                events.ctypes.data,
                len(events),
                ids,
                stop_at_oom,
                None if places is None else places.ctypes.data,
                ctypes.byref(counts),
            )
        )
        first = counts.first_oom if counts.ooms else None
        return ReplayResult(counts.done, counts.ooms, first, counts.elapsed_ns, places)

    def clock_set(self, t_ns: int, device: int = 0) -> None:
        """Moves the logical clock of the null and host driver forward."""
        native.check(self._core.vmm_clock_set(self.handle, device, t_ns))

    def clock_kernel(self, stream: int, duration_ns: int, device: int = 0) -> None:
        """Queues work of this length on a stream of the null or host driver."""
        native.check(self._core.vmm_clock_kernel(self.handle, device, stream, duration_ns))

    def _bytes(self, function: Any, *arguments: Any) -> int:
        out = ctypes.c_uint64()
        native.check(function(self.handle, *arguments, ctypes.byref(out)))
        return out.value

    def _rows(self, function: Any, row: Any, device: int | None) -> Sequence[Any]:
        where = () if device is None else (device,)
        count = ctypes.c_size_t()
        native.check(function(self.handle, *where, None, 0, ctypes.byref(count)))
        while True:
            rows = (row * count.value)()
            room = count.value
            native.check(function(self.handle, *where, rows, room, ctypes.byref(count)))
            if count.value <= room:  # other threads may have allocated meanwhile
                return list(rows[: count.value])

    @staticmethod
    def _sizes(sizes: Iterable[int]) -> Any:
        numbers = list(sizes)
        if any(size < 0 for size in numbers):
            raise Invalid(f"sizes: none may be negative, but there is {min(numbers)}")
        return (ctypes.c_uint64 * len(numbers))(*numbers)

    @staticmethod
    def _reason(reason: str) -> int:
        if reason not in native.PIN_REASONS:
            raise Invalid(
                f"reason: it must be one of {', '.join(native.PIN_REASONS)}, but is {reason!r}"
            )
        return native.PIN_REASONS.index(reason)


def stat_names() -> list[str]:
    """The names of the counters, in the order of the C interface."""
    core = native.library()
    return [core.vmm_stat_name(index).decode() for index in range(core.vmm_stat_count())]


def tag_text(number: int) -> str:
    """The text of an interned tag, "" for none."""
    text = native.library().vmm_tag_text(number)
    return "" if text is None else text.decode(errors="replace")
