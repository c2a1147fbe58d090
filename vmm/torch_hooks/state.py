# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What is enabled in this process: one allocator under one kind of device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from vmm.allocator import Allocator
from vmm.errors import Invalid


class TorchAllocator(Allocator):
    """The allocator that holds torch's tensors. It lives as long as the process."""

    def close(self) -> None:
        raise Invalid("close: tensors of torch lie in this allocator; vmm.disable() detaches it")


@dataclass
class State:
    """An enabled allocator and how it is attached."""

    allocator: TorchAllocator
    device_type: str  # cpu or cuda
    mode: str  # hook, plugin or subclass
    detach: Callable[[], None] | None  # None: it cannot be undone
    route: Callable[[int, int], int]  # (device, pool) of this thread from now on -> the old pool
    pools: dict[tuple[int, str], int] = field(default_factory=dict)  # (device, name) -> number
    pool_options: dict[tuple[int, str], tuple[int, bool]] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)


_state: State | None = None


def current() -> State | None:
    """The state, None if nothing is enabled or this is a fork of the process that enabled it."""
    if _state is None or _state.process != os.getpid():
        return None
    return _state


def replace(state: State | None) -> None:
    """Makes `state` the current one."""
    global _state
    _state = state


def require() -> State:
    """The state. Raises Invalid if nothing is enabled."""
    state = current()
    if state is None:
        raise Invalid("vmm: no allocator is enabled in this process; call vmm.enable() first")
    return state


def device_number(state: State, device: object) -> int:
    """The index of a device of the enabled kind.

    Takes None (device 0, or torch's current CUDA device), a number, a text or a `torch.device`.

    Raises:
        Invalid: a device of another kind, or not a device.
    """
    if device is None:
        if state.device_type == "cpu":
            return 0
        import torch

        return torch.cuda.current_device()
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    import torch

    try:
        found = torch.device(device)  # type: ignore[call-overload]
    except (RuntimeError, TypeError) as error:
        raise Invalid(f"device: {device!r} is not a device") from error
    if found.type != state.device_type:
        raise Invalid(f"device: vmm serves {state.device_type} in this process, not {device!r}")
    return int(found.index or 0)
