# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What one may ask of the enabled allocator.

Each takes ``device``: None (device 0 of the CPU, torch's current CUDA device), a number, a text or
a `torch.device`. All raise `vmm.errors.Invalid` if nothing is enabled, or an argument breaks its
rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from vmm.errors import Invalid
from vmm.torch_hooks.arguments import byte_count, byte_counts
from vmm.torch_hooks.state import device_number, require


def compact(
    target: int = 0, release: bool = False, sync: bool = True, *, device: object = None
) -> int:
    """Gathers free pages into one run of at least `target` bytes (0: as large as it can).

    A good place is between two steps. Addresses of living tensors do not change.

    Args:
        release: gives the pages back to the device instead.
        sync: waits for the device first; else pages that queued work may still use stay.

    Returns:
        The bytes moved or given back.
    """
    state = require()
    target = byte_count("target", target)
    return state.allocator.compact(target, release, sync, device=device_number(state, device))


def trim(nbytes: int | None = None, *, device: object = None) -> int:
    """Gives up to `nbytes` of free physical memory back (None: all); returns how much."""
    state = require()
    nbytes = None if nbytes is None else byte_count("nbytes", nbytes)
    return state.allocator.trim(nbytes, device=device_number(state, device))


def step(*, device: object = None) -> None:
    """Marks the end of a training step: how much memory the allocator holds follows the last steps,
    and counters per step start again."""
    state = require()
    state.allocator.mark_step(device=device_number(state, device))


def plan(sizes: Iterable[int], stream: int = 0, *, device: object = None) -> str:
    """Whether requests of these bytes, all alive together, would fit. Changes nothing.

    Returns:
        ``"fits"``, ``"fits_after_steal"`` or ``"does_not_fit"``.
    """
    state = require()
    sizes = byte_counts("sizes", sizes)
    return state.allocator.plan(sizes, stream, device=device_number(state, device))


def prefetch(sizes: Iterable[int], stream: int = 0, *, device: object = None) -> None:
    """Does the mapping that such requests would need now, for instance before a step.

    Raises `vmm.errors.OutOfMemory` if they do not fit.
    """
    state = require()
    sizes = byte_counts("sizes", sizes)
    state.allocator.prefetch(sizes, stream, device=device_number(state, device))


def stats(*, device: object = None) -> dict[str, int]:
    """Every counter by name; `vmm.observe` has the names of torch and tables to read."""
    state = require()
    return state.allocator.stats(device=device_number(state, device))


def on_oom(callback: Callable[[int, int], bool]) -> Callable[[int, int], bool]:
    """Calls ``callback(device, nbytes)`` when a request cannot be served, without any lock.

    A true result says that it freed something: the request is tried again. Works as a decorator.
    """
    if not callable(callback):
        raise Invalid(f"callback: must be a function of (device, nbytes), but is {callback!r}")
    require().allocator.on_oom(callback)
    return callback


def remove_on_oom(callback: Callable[[int, int], bool]) -> None:
    """Takes a callback away. Raises Invalid if it is not registered."""
    require().allocator.remove_on_oom(callback)
