# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""How regions show in a recording: as a note where they begin and one where they end."""

from __future__ import annotations

_BEGIN, _END = "> ", "< "


def begin(name: str) -> str:
    """The note at the beginning of a region."""
    return _BEGIN + name


def end(name: str) -> str:
    """The note at the end of a region."""
    return _END + name


def is_begin(text: str) -> bool:
    """Whether a note is the beginning of a region."""
    return text.startswith(_BEGIN)


def is_end(text: str) -> bool:
    """Whether a note is the end of a region."""
    return text.startswith(_END)


def region_name(text: str) -> str:
    """The region that the note of a beginning or an end is about."""
    return text[2:]
