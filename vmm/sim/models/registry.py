# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The models of allocators by name, loaded when they are asked for."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from vmm.errors import Invalid

# Name -> "module:Class", made as Class(capacity, **options): see `vmm.sim.models.base`.
MODELS: dict[str, str] = {
    "torch": "vmm.sim.models.torch_default:TorchDefault",
    "torch-expandable": "vmm.sim.models.torch_expandable:TorchExpandable",
    "paddle-auto-growth": "vmm.sim.models.paddle_auto_growth:PaddleAutoGrowth",
    "paddle-vmm": "vmm.sim.models.paddle_vmm:PaddleVmm",
    "gmlake": "vmm.sim.models.gmlake:Gmlake",
    "vmm": "vmm.sim.models.vmm:VmmModel",
}


def known(name: str) -> str:
    """The name itself; raises `vmm.errors.Invalid` if there is no such model."""
    if name not in MODELS:
        raise Invalid(f"there is no allocator {name!r}; known are {', '.join(MODELS)}")
    return name


def is_there(name: str) -> bool:
    """Whether the module of a model can be found; raises `Invalid` for an unknown name."""
    module = MODELS[known(name)].partition(":")[0]
    return importlib.util.find_spec(module) is not None


def model_class(name: str) -> Any:
    """The class of a model. Raises `vmm.errors.Invalid` for a name that there is not."""
    module, _, attribute = MODELS[known(name)].partition(":")
    return getattr(importlib.import_module(module), attribute)
