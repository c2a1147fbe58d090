# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Who holds the memory at a moment: bytes by tag and by stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from vmm.view.curves import live_blocks
from vmm.view.recording import Recording


class Share(NamedTuple):
    """Live bytes and blocks under one name."""

    name: str
    bytes: int
    blocks: int


def shares(recording: Recording, event: int, by: str) -> list[Share]:
    """Live bytes after an event by ``tag`` or ``stack``, the largest first.

    Numbers with the same text are one share, so that two files can be compared by name.
    """
    rows = live_blocks(recording, event)
    keys, place = np.unique(recording.blocks[by][rows], return_inverse=True)
    name = (_tag_names if by == "tag" else _stack_names)(recording)
    sizes, counts = np.zeros(len(keys), np.int64), np.bincount(place, minlength=len(keys))
    np.add.at(sizes, place, recording.blocks["size"][rows])
    found: dict[str, Share] = {}
    for key, size, count in zip(keys.tolist(), sizes.tolist(), counts.tolist(), strict=True):
        text = name(key)
        before = found.get(text, Share(text, 0, 0))
        found[text] = Share(text, before.bytes + size, before.blocks + count)
    return sorted(found.values(), key=lambda share: (-share.bytes, share.name))


def _tag_names(recording: Recording) -> Callable[[int], str]:
    tags = recording.tags

    def name(tag: int) -> str:
        text = tags[tag] if tag < len(tags) else ""
        return text or (f"tag {tag}" if tag else "(no tag)")

    return name


def _stack_names(recording: Recording) -> Callable[[int], str]:
    stacks = recording.stacks

    def name(stack: int) -> str:
        frames = stacks[stack] if stack < len(stacks) else []
        lines = [f"{call} {file}:{line}" if file else call for file, line, call in frames]
        return " < ".join(lines[:3]) + (" < …" if len(lines) > 3 else "") or "(no stack)"

    return name
