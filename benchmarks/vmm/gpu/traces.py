# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What real allocators replay on a GPU: modelled workloads, sized for a device of 80 GB."""

from __future__ import annotations

from typing import Any

# Name -> name in the suite and the parameters that differ from its own there.
TRACES: dict[str, tuple[str, dict[str, Any]]] = {
    "MoE with side stream": ("moe-all-to-all", {"steps": 2}),
    "FSDP, three streams": ("fsdp", {}),
    "RL, two streams": ("rl-two-streams", {"steps": 2}),
    "LoRA, variable length": ("lora-varlen", {"steps": 6}),
}


def build(name: str) -> Any:
    """The trace of a row. Deterministic."""
    from vmm.sim import suite

    entry, given = TRACES[name]
    return suite.trace(entry, **given)
