# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Totals after each event, and the moment of the peak."""

from __future__ import annotations

import numpy as np

from vmm.view.recording import Column, Recording


def live(recording: Recording, column: str = "size") -> Column:
    """int64[n]: bytes of live blocks after each event, as taken or (``requested``) asked for."""
    blocks, count = recording.blocks, len(recording)
    change = np.zeros(count + 1, dtype=np.int64)
    np.add.at(change, blocks["birth"], blocks[column])
    np.subtract.at(change, blocks["death"], blocks[column])
    return np.cumsum(change[:count])


def held(recording: Recording) -> Column:
    """int64[n]: physical bytes held after each event; zeros if the file does not say."""
    maps, count = recording.maps, len(recording)
    change = np.zeros(count + 1, dtype=np.int64)
    seen = maps["birth"] >= 0
    np.add.at(change, maps["birth"][seen], maps["held"][seen])
    np.add.at(change, maps["death"], maps["released"])
    return recording.held_before + np.cumsum(change[:count])


def peak_event(recording: Recording, curve: Column) -> int:
    """The first event at which the curve is highest; -1 without events.

    Of the events that stand for the start only the last one counts: then all of it is there.
    """
    first = max(0, recording.start_events - 1)
    return first + int(np.argmax(curve[first:])) if len(curve) else -1


def peak(recording: Recording, curve: Column) -> int:
    """The highest value of the curve, 0 without events."""
    return int(curve[peak_event(recording, curve)]) if len(curve) else 0


def live_blocks(recording: Recording, event: int) -> Column:
    """Rows of the blocks that are live after an event."""
    blocks = recording.blocks
    return np.flatnonzero((blocks["birth"] <= event) & (blocks["death"] > event))
