# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What all generators take, and how a parameter is described, checked and read from text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from vmm.errors import Invalid

T = TypeVar("T", int, float, bool)
P = TypeVar("P", bound="Parameters")


def setting(default: T, text: str, *, low: float = 1, high: float = math.inf) -> T:
    """A field with a description (units included) and the inclusive range of its values."""
    described: Any = field(default=default, metadata={"text": text, "low": low, "high": high})
    return cast(T, described)


@dataclass(frozen=True, kw_only=True)
class Parameters:
    """The machine and the length of a run. Raises `vmm.errors.Invalid` for values out of range.

    The figures of the machine are what kernels reach on an 80 GB accelerator, not its peaks.
    """

    seed: int = setting(0, "of the random numbers", low=0)
    steps: int = setting(4, "steps, each ends with a mark")
    device_bytes: int = setting(80 << 30, "memory of the device, bytes; not a limit here")
    flops: float = setting(4e14, "floating-point operations per second", low=1e6)
    memory_rate: float = setting(2.2e12, "bytes per second to and from device memory", low=1e6)
    link_rate: float = setting(1.5e11, "bytes per second to other devices", low=1e6)
    kernel_ns: int = setting(3000, "least duration of a kernel, ns", low=0)
    launch_ns: int = setting(6000, "host time to launch a kernel, ns", low=0)
    call_ns: int = setting(500, "host time of an allocation or free, ns", low=0)
    queue: int = setting(1024, "kernels a stream holds before the host waits")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value, kind = getattr(self, item.name), type(item.default)
            fits = type(value) is kind or (kind is float and type(value) is int)
            if not fits:
                raise Invalid(f"{item.name} is {value!r}; it takes {_KINDS[kind]}")
            low, high = item.metadata["low"], item.metadata["high"]
            # A comparison that is false for NaN too.
            if kind is not bool and not low <= value <= high:
                bound = f"at least {low}" if math.isinf(high) else f"{low} to {high}"
                raise Invalid(f"{item.name} is {value}; it takes {bound}")


_KINDS: Mapping[Any, str] = {int: "an integer", float: "a number", bool: "true or false"}
_BOOLS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def make(kind: type[P], given: Mapping[str, Any]) -> P:
    """Parameters of a kind. Raises `Invalid` for a name it has not, or a value out of range."""
    known = {item.name for item in dataclasses.fields(kind)}
    for name in given:
        if name not in known:
            raise Invalid(f"there is no parameter {name!r}; known are {', '.join(sorted(known))}")
    return kind(**given)


def from_text(kind: type[Parameters], name: str, text: str) -> Any:
    """The value that a text such as 4, 1e14 or true means for a parameter; raises `Invalid`."""
    types: dict[str, Any] = {item.name: type(item.default) for item in dataclasses.fields(kind)}
    if name not in types:
        raise Invalid(f"there is no parameter {name!r}; known are {', '.join(sorted(types))}")
    try:
        return _BOOLS[text.lower()] if types[name] is bool else types[name](text)
    except (KeyError, ValueError):
        raise Invalid(f"{name} is {text!r}; it takes {_KINDS[types[name]]}") from None


def describe(kind: type[Parameters]) -> list[tuple[str, Any, str]]:
    """(name, default, description) of each parameter, the kind's own first."""
    common = {item.name for item in dataclasses.fields(Parameters)}
    rows = [(item.name, item.default, item.metadata["text"]) for item in dataclasses.fields(kind)]
    return sorted(rows, key=lambda row: row[0] in common)
