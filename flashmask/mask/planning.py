# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Build a plan where a compiled planner serves the device, and tell when it went stale."""

from __future__ import annotations

import torch
from torch import Tensor


def build_plan(
    bounds: Tensor | None,
    block_mask: Tensor | None,
    causal: bool,
    seqlen_q: int,
    seqlen_k: int,
    device: torch.device,
) -> Tensor | None:
    """Return the plan of a mask, or None if no planner serves the device."""
    if not _can_plan(device.type):
        return None
    plan: Tensor = torch.ops.flashmask.plan(bounds, block_mask, seqlen_q, seqlen_k, causal)
    return plan


def _can_plan(device_type: str) -> bool:
    """Whether the op `flashmask::plan` exists and has a kernel for this type of device."""
    if not hasattr(torch.ops.flashmask, "plan"):
        return False
    key = torch._C._dispatch_key_for_device(device_type)
    return torch._C._dispatch_has_kernel_for_dispatch_key("flashmask::plan", key)


# The tracer asks once and keeps the answer. torch.compiler.assume_constant_result sets the same
# mark, but imports the whole compiler to do so, which takes a second.
_can_plan._dynamo_marked_constant = True  # type: ignore[attr-defined]


def versions(*tensors: Tensor | None) -> tuple[int, ...] | None:
    """Return the counters that in-place edits increase.

    None if unknown: tracing does not see them, and inference tensors have none.
    """
    if torch.compiler.is_compiling():
        return None
    if any(tensor is not None and tensor.is_inference() for tensor in tensors):
        return None
    return tuple(0 if tensor is None else tensor._version for tensor in tensors)
