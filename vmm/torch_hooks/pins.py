# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Pins: pages under a tensor that must never change their address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vmm.errors import Invalid
from vmm.torch_hooks.state import device_number, require

if TYPE_CHECKING:
    import torch


def pin(tensor: torch.Tensor, reason: str = "user") -> None:
    """Keeps the pages under the storage of a tensor where they are, also after it is freed.

    For memory that others know by its pages: exported to another process (``"ipc"``), registered
    with NCCL or RDMA (``"registered"``), named by a captured graph (``"graph"``), or ``"user"``.
    Pins count; each needs its own `unpin`. The address of a living tensor never changes anyway.

    Raises:
        Invalid: an unknown reason, or the tensor does not lie in memory of the allocator.
    """
    require().allocator.pin(*_range(tensor), reason, device=_device(tensor))


def unpin(tensor: torch.Tensor, reason: str = "user") -> None:
    """Takes one pin away. Raises Invalid if there is none for this reason."""
    require().allocator.unpin(*_range(tensor), reason, device=_device(tensor))


def _range(tensor: torch.Tensor) -> tuple[int, int]:
    try:
        storage = tensor.untyped_storage()
    except (AttributeError, NotImplementedError):
        raise Invalid(
            f"tensor: must be a tensor with one storage, but is a {type(tensor).__name__}"
        ) from None
    if storage.nbytes() == 0:
        raise Invalid("tensor: it has no memory to pin")
    return storage.data_ptr(), storage.nbytes()


def _device(tensor: torch.Tensor) -> int:
    return device_number(require(), tensor.device)
