# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Lines of a log, with their numbers for error messages."""

from __future__ import annotations

from collections.abc import Iterator

from vmm.errors import FormatError

_MAX_LINE = 1 << 16


def lines(data: bytes) -> Iterator[tuple[int, str]]:
    """(line number from 1 on, text without the line end) of each line that is not blank."""
    begin = number = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = len(data) if end < 0 else end
        number += 1
        if end - begin > _MAX_LINE:
            raise FormatError(f"line {number} is longer than {_MAX_LINE} bytes")
        text = data[begin:end].decode("utf-8", "replace").strip()
        if text:
            yield number, text
        begin = end + 1


def number(text: str, what: str, line: int) -> int:
    """A number, decimal or with 0x. Raises FormatError."""
    try:
        return int(text, 16) if text[:2].lower() == "0x" else int(text)
    except ValueError:
        raise FormatError(f"line {line}: {what} is {text[:60]!r}, not a number") from None
