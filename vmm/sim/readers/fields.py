# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Values out of data that a stranger wrote: of the right kind and size, or a clear error."""

from __future__ import annotations

from typing import Any

from vmm.errors import FormatError

_LIMIT = 1 << 63


def whole(value: Any, what: str, default: int | None = None) -> int:
    """A number from 0 to 2**63 - 1. `default` stands for one that is not there."""
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise FormatError(f"{what} is {short(value)}, not a number from 0 to 2**63 - 1")
    return value


def handle(value: Any, what: str) -> int:
    """A stream handle: a pointer, which some writers show as a negative number."""
    if value is None:
        return 0
    if type(value) is not int or not -_LIMIT <= value < 2 * _LIMIT:
        raise FormatError(f"{what} is {short(value)}, not a stream")
    return value % (2 * _LIMIT)


def listed(value: Any, what: str) -> list[Any] | tuple[Any, ...]:
    """A list or tuple."""
    if not isinstance(value, list | tuple):
        raise FormatError(f"{what} is {short(value)}, not a list")
    return value


def table(value: Any, what: str) -> dict[Any, Any]:
    """A dict."""
    if not isinstance(value, dict):
        raise FormatError(f"{what} is {short(value)}, not a table")
    return value


def chosen(have: set[int], device: int | None) -> int:
    """The device that a file is about: the only one, or the one that the caller names."""
    if device is not None:
        if device not in have:
            names = ", ".join(map(str, sorted(have))) or "none"
            raise FormatError(f"nothing is recorded of device {device}; there are: {names}")
        return device
    if len(have) > 1:
        names = ", ".join(map(str, sorted(have)))
        raise FormatError(f"several devices are recorded ({names}): choose one with device=")
    return next(iter(have), 0)


def short(value: Any) -> str:
    """A value for an error message; containers are only counted, as they may hold themselves."""
    if isinstance(value, list | tuple | dict):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
