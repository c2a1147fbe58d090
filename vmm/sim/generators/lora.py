# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Adapters of low rank trained beside a frozen transformer, on sequences of different lengths."""

from __future__ import annotations

from dataclasses import dataclass

from vmm.sim.generators.model_state import ModelState
from vmm.sim.generators.parameters import setting
from vmm.sim.generators.tape import Tape
from vmm.sim.generators.varlen import VarlenParameters, run, weights
from vmm.sim.trace import Trace


@dataclass(frozen=True, kw_only=True)
class LoraParameters(VarlenParameters):
    """The model of `varlen`; only the adapters have gradients and optimizer state."""

    rank: int = setting(16, "rank of the adapters")


def generate(p: LoraParameters) -> Trace:
    """The trace of training the adapters."""
    tape = Tape("lora", p)
    s = p.shape(p.rank)
    adapters = list(s.adapter_weights().values()) * p.layers
    run(tape, ModelState(tape, adapters, frozen=weights(s, p.layers), flat=False), s, p)
    return tape.trace()
