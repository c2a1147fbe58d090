# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Which allocator and device a call means when it names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmm.errors import Invalid

if TYPE_CHECKING:
    from vmm.allocator import Allocator


def resolve(allocator: Allocator | None) -> Allocator:
    """The allocator itself, or the one that this process has enabled.

    Raises `vmm.errors.Invalid` if there is neither.
    """
    if allocator is not None:
        return allocator
    from vmm import torch_hooks

    enabled: Allocator | None = torch_hooks.enabled()
    if enabled is None:
        raise Invalid(
            "allocator: none was given, and none is enabled in this process (vmm.enable())"
        )
    return enabled


def device_index(device: object, allocator: Allocator | None = None) -> int:
    """A device as a number: None is 0, text and `torch.device` count by their index.

    Raises `vmm.errors.Invalid` for anything else, for a negative number, and without `allocator`
    for a device of another kind than vmm serves.
    """
    if device is None:
        return 0
    index: object = device
    if isinstance(device, str):
        name, colon, number = device.partition(":")
        index = int(number) if colon and number.isdecimal() else 0 if name and not colon else None
    elif not isinstance(device, int):
        index = getattr(device, "index", device) or 0 if hasattr(device, "index") else None
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise Invalid(f"device: must be None, a number from 0, or a device, but is {device!r}")
    kind = device.partition(":")[0] if isinstance(device, str) else getattr(device, "type", None)
    if kind is not None and allocator is None:
        from vmm.torch_hooks import state

        there = state.current()
        if there is not None and there.device_type != kind:
            raise Invalid(f"device: vmm serves {there.device_type} in this process, not {device!r}")
    return index
