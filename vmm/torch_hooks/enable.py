# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The door: which allocator serves torch in this process."""

from __future__ import annotations

import os
from typing import Any

from vmm.allocator import Allocator
from vmm.errors import Invalid, Unsupported
from vmm.torch_hooks import cpu, cuda_plugin, state, subclass
from vmm.torch_hooks.state import State, TorchAllocator

MODES = {"cpu": ("hook",), "cuda": ("plugin", "subclass")}
DRIVERS = {"cpu": "host", "cuda": "cuda"}


def enable(
    device: str = "cuda", *, mode: str | None = None, cpu_min: int = 0, **config: Any
) -> Allocator:
    """Serves torch's tensors on a kind of device from now on.

    On the CPU memory is pages of a memory file that the allocator maps where it needs them (driver
    ``host``), and tensors that exist keep their memory. On CUDA it must come before the first use
    of CUDA, and stays for the life of the process.

    Args:
        device: ``"cuda"`` or ``"cpu"``.
        mode: on CUDA ``"plugin"`` (the default; works with every build of torch) or ``"subclass"``
            (torch's own statistics and snapshots work as well; needs the module compiled for this
            torch). On the CPU ``"hook"``.
        cpu_min: CPU tensors of fewer bytes come from torch's own allocator.
        config: the keys of docs/vmm.md; they win over those of the environment variable VMM_CONF.

    Returns:
        The allocator, which `vmm.enabled` gives as well.

    Raises:
        Invalid: enabled already, CUDA in use already, an unknown key or a value out of range.
        Unsupported: this torch or machine lacks what it takes.
    """
    if device not in MODES:
        raise Invalid(f"device: must be 'cuda' or 'cpu', but is {device!r}")
    mode = mode or MODES[device][0]
    if mode not in MODES[device]:
        raise Invalid(f"mode: for {device} it must be one of {MODES[device]}, but is {mode!r}")
    if isinstance(cpu_min, bool) or not isinstance(cpu_min, int) or cpu_min < 0:
        raise Invalid(f"cpu_min: must be a number of bytes from 0, but is {cpu_min!r}")
    if cpu_min and device != "cpu":
        raise Invalid(f"cpu_min: is for device='cpu', but device is {device!r}")
    there = state.current()
    if there is not None:
        raise Invalid(
            f"vmm.enable: an allocator for {there.device_type} is enabled already in this process"
        )
    text = os.environ.get("VMM_CONF", "")
    if "driver" in config or any(part.startswith("driver:") for part in text.split(",")):
        raise Invalid(f"driver: the device decides; for {device} it is {DRIVERS[device]!r}")

    part = {"hook": cpu, "plugin": cuda_plugin, "subclass": subclass}[mode]
    part.require()
    allocator = TorchAllocator(text, **config, driver=DRIVERS[device])
    try:
        if mode == "hook":
            cpu.install(allocator, cpu_min)
        elif mode == "plugin":
            cuda_plugin.install(allocator)
        else:
            subclass.install(allocator)
    except BaseException:
        Allocator.close(allocator)  # nothing lies in it
        raise
    detach = cpu.uninstall if mode == "hook" else None
    route = cpu.route if mode == "hook" else cuda_plugin.route
    state.replace(State(allocator, device, mode, detach, route))
    return allocator


def disable() -> None:
    """Lets torch's own allocator serve CPU tensors again.

    Tensors that exist stay valid; their memory goes back to the system as they die.

    Raises:
        Invalid: nothing is enabled.
        Unsupported: CUDA; torch cannot change its allocator once it is in use.
    """
    there = state.require()
    if there.detach is None:
        raise Unsupported(
            "vmm.disable: torch cannot change its CUDA allocator; end the process instead"
        )
    there.detach()
    state.replace(None)


def enabled() -> Allocator | None:
    """The allocator that serves torch in this process, None if there is none.

    In a fork of the process there is none: the child's tensors are ordinary.
    """
    there = state.current()
    return None if there is None else there.allocator
