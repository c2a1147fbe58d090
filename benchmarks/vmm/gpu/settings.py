# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The environment of a process by the allocator that it is to use."""

from __future__ import annotations

# Allocator -> torch's settings. A process reads them once, when it first uses CUDA.
TORCH_SETTINGS = {
    "default": "expandable_segments:False",
    "expandable": "expandable_segments:True",
    "ours": "",
}
# Torch has had a second name for the variable since other accelerators use it; both are set.
VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def allocator_variables(kind: str) -> dict[str, str]:
    return dict.fromkeys(VARIABLES, TORCH_SETTINGS[kind]) if TORCH_SETTINGS[kind] else {}
