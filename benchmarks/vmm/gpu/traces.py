# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The traces that real allocators replay: two real-like training runs and a mixture of experts."""

from __future__ import annotations

import importlib
from typing import Any

# Name -> generator and the parameters that differ from its defaults. Sized for a device of 80 GB.
TRACES: dict[str, tuple[str, dict[str, Any]]] = {
    "MoE with side stream": ("moe", {"side_stream": True, "steps": 2}),
    "variable length": ("varlen", {"steps": 6}),
    "LoRA": ("lora", {"steps": 6}),
}


def build(name: str) -> Any:
    """The trace of a row. Deterministic."""
    generator, given = TRACES[name]
    module = importlib.import_module(f"vmm.sim.generators.{generator}")
    (kind,) = (
        value for key, value in vars(module).items() if key.lower() == f"{generator}parameters"
    )
    return module.generate(kind(**given))
