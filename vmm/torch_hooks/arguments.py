# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Numbers of bytes that callers give, checked before they become C integers, which wrap."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from vmm.errors import Invalid


def byte_count(name: str, value: object) -> int:
    """A number of bytes from 0. Raises Invalid for anything else."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**63:
        raise Invalid(f"{name}: must be a number of bytes from 0, but is {value!r}")
    return number


def byte_counts(name: str, values: Iterable[int]) -> list[int]:
    """Numbers of bytes from 0. Raises Invalid for anything else."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise Invalid(f"{name}: must be a list of numbers of bytes, but is {values!r}")
    return [byte_count(name, value) for value in values]
