# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The named set of modelled traces on which fragmentation is reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vmm.errors import Invalid
from vmm.sim.generators.registry import generate
from vmm.sim.trace import Trace

# Name -> generator, and the parameters that differ from its defaults.
SUITE: dict[str, tuple[str, Mapping[str, Any]]] = {
    "moe-per-expert": ("moe", {}),
    "moe-grouped": ("moe", {"grouped": True}),
    "moe-recompute": ("moe", {"recompute": True, "in_flight": 8, "layers": 6, "sequence": 12288}),
    "moe-all-to-all": ("moe", {"side_stream": True}),
    "varlen": ("varlen", {}),
    "lora-varlen": ("lora", {}),
    "rl-one-stream": ("rl", {}),
    "rl-two-streams": ("rl", {"two_streams": True}),
    "fsdp": ("fsdp", {}),
    "pipeline": ("pipeline", {}),
    "inference": ("inference", {}),
    "pinned-growing": ("pinned_growing", {}),
    "robson": ("robson", {}),
}
_MULTI_STREAM = frozenset({"moe-all-to-all", "rl-two-streams", "fsdp", "pipeline"})


def traces(names: Iterable[str] | None = None) -> Iterator[tuple[str, Trace]]:
    """(name, trace) of the named ones, or of all, each made when its turn comes.

    Raises `vmm.errors.Invalid` for a name that is not in the suite, before the first is made.
    """
    chosen = list(SUITE) if names is None else list(names)
    for name in chosen:
        _entry(name)
    return ((name, trace(name)) for name in chosen)


def trace(name: str, **parameters: Any) -> Trace:
    """One trace of the suite; `parameters` go over its own. Its name is in the header."""
    kind, own = _entry(name)
    made = generate(kind, **{**own, **parameters})
    made.header["name"] = name
    return made


def multi_stream(name: str) -> bool:
    """Whether a trace of the suite allocates on more than one stream; raises `Invalid`."""
    _entry(name)
    return name in _MULTI_STREAM


def _entry(name: str) -> tuple[str, Mapping[str, Any]]:
    if name not in SUITE:
        raise Invalid(f"there is no trace {name!r} in the suite; known are {', '.join(SUITE)}")
    return SUITE[name]
