# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The generators by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vmm.errors import Invalid
from vmm.sim.generators.parameters import Parameters, make
from vmm.sim.trace import Trace

# Name -> the class of its parameters, in the module of that name.
GENERATORS: dict[str, str] = {
    "moe": "MoeParameters",
    "varlen": "VarlenParameters",
    "lora": "LoraParameters",
    "fsdp": "FsdpParameters",
    "rl": "RlParameters",
    "pipeline": "PipelineParameters",
    "inference": "InferenceParameters",
    "pinned_growing": "PinnedGrowingParameters",
    "robson": "RobsonParameters",
}


@dataclass(frozen=True)
class Generator:
    """One generator; `text` is what it models."""

    name: str
    text: str
    parameters: type[Parameters]
    function: Callable[[Any], Trace]

    def generate(self, given: Mapping[str, Any]) -> Trace:
        """The trace with these parameters, the others as published; raises `Invalid`."""
        return self.function(make(self.parameters, given))


def generator(name: str) -> Generator:
    """A generator by name; raises `vmm.errors.Invalid` for a name that there is not."""
    if name not in GENERATORS:
        raise Invalid(f"there is no generator {name!r}; known are {', '.join(GENERATORS)}")
    module = importlib.import_module(f"vmm.sim.generators.{name}")
    text = (module.__doc__ or "").split("\n\n")[0].strip()
    return Generator(name, text, getattr(module, GENERATORS[name]), module.generate)


def generate(name: str, **parameters: Any) -> Trace:
    """The trace of a generator; raises `Invalid` for a bad name or parameter."""
    return generator(name).generate(parameters)
