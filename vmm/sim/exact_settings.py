# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Allocator settings that a recording without them may have been made with."""

from __future__ import annotations

from collections.abc import Iterator

from vmm.sim.models.torch_settings import MIB, SMALL_LIMIT, UNLIMITED, TorchSettings
from vmm.sim.snapshot import ALLOC, FREE, Snapshot

_DIVISIONS = (1, 2, 4, 8, 16, 32, 64)
_MAX_LIMITS = 60


def candidates(snapshot: Snapshot) -> Iterator[str]:
    """Settings as text: divisions that fit the blocks at the end, the fewest first, each without a
    split limit and with those limits that would tell apart sizes that occur.
    """
    for divisions in _DIVISIONS:
        text = "" if divisions == 1 else f"roundup_power2_divisions:{divisions}"
        settings = TorchSettings.from_text(text)
        if not _fits(snapshot, settings):
            continue
        if text:
            yield text
        for limit in _limits(snapshot, settings):
            yield ",".join(filter(None, (text, f"max_split_size_mb:{limit}")))


def _fits(snapshot: Snapshot, settings: TorchSettings) -> bool:
    """Whether the blocks in use have the sizes that their requests are rounded to."""
    for segment in snapshot.segments:
        small = segment["segment_type"] == "small"
        for block in segment["blocks"]:
            if block["state"] == FREE:
                continue
            rest = block["size"] - settings.round(block["requested_size"])
            # With a split limit a block may be larger by more than 1 MiB, but then it is a segment.
            whole = block["size"] == segment["total_size"]
            if rest < 0 or (rest > 0 and small) or (rest > SMALL_LIMIT and not whole):
                return False
    return True


def _limits(snapshot: Snapshot, settings: TorchSettings) -> list[int]:
    """Split limits in MiB that differ in effect, largest first.

    A limit matters where a request, or a cached segment, is on the other side of it: so they are
    the sizes that occur, and just above them.
    """
    sizes = {settings.round(size) for size in set(snapshot.size[snapshot.action == ALLOC].tolist())}
    sizes |= {settings.segment_size(size) for size in sizes}
    sizes |= {segment["total_size"] for segment in snapshot.segments}
    limits = {size // MIB + more for size in sizes for more in (0, 1)}
    least = settings.large_segment_size // MIB
    return sorted((x for x in limits if least <= x < UNLIMITED // MIB), reverse=True)[:_MAX_LIMITS]
