# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The options of a model: whole numbers with limits, given by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from vmm.errors import Invalid


class Option(NamedTuple):
    """A number from `least` to `most` (None: no upper limit); a switch goes from 0 to 1."""

    default: int
    least: int
    most: int | None
    meaning: str


LAG = Option(5_000_000, 0, None, "ns from when a stream reaches an event until the host sees it")


def read_options(
    model: str, known: Mapping[str, Option], given: Mapping[str, object]
) -> dict[str, int]:
    """Every known option, given or by default; text with a number is taken, too.

    Raises `vmm.errors.Invalid` for an unknown name, a value that is no number or out of its limits.
    """
    values = {name: option.default for name, option in known.items()}
    for name, value in given.items():
        option = known.get(name)
        if option is None:
            raise Invalid(f"{model} has no option {name!r}; known are {', '.join(known)}")
        limits = f"at least {option.least}"
        if option.most is not None:
            limits = f"from {option.least} to {option.most}"
        try:
            number = int(value) if isinstance(value, str | int) else None
        except ValueError:
            number = None
        if number is None or number < option.least or number > (option.most or number):
            raise Invalid(f"the option {name} of {model} is {value!r}, not a number {limits}")
        values[name] = number
    return values
