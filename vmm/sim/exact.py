# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Holds the model of torch's allocator against a recording of the real one, address by address."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

from vmm.sim.exact_replay import ExactReplay
from vmm.sim.exact_settings import candidates
from vmm.sim.models.torch_settings import TorchSettings
from vmm.sim.snapshot import Snapshot
from vmm.sim.starting_layout import InconsistentError, starting_layout

_MAX_PASSES = 100
_MAX_EVENTS = 2_000_000  # that are replayed to find settings


@dataclass
class ExactResult:
    """How far the model agrees with a snapshot.

    ``exact``: every address, every new segment and the bytes reserved at the end agree.
    ``mismatches`` counts the events that do not, ``first_mismatch`` is the first of them or None,
    ``message`` tells what it is. ``reserved`` is what the model predicts, ``reserved_recorded``
    what the snapshot says. ``same_layout``: all blocks at the end agree in place, size and state.
    ``inferred_ends``: blocks from before the first event whose exact size the recording does not
    show, and which had to be larger than their rounded request.
    ``settings``: other allocator settings that would make it exact, if the snapshot tells none.
    ``releases``: how many times the whole cache, or a part of it, was given back to the driver.
    """

    events: int
    reserved_recorded: int
    allocs: int = 0
    segment_allocs: int = 0
    mismatches: int = 0
    first_mismatch: int | None = None
    message: str = ""
    reserved: int = 0
    same_layout: bool = False
    inferred_ends: int = 0
    settings: str = ""
    releases: dict[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        return self.mismatches == 0 and self.reserved == self.reserved_recorded

    def __str__(self) -> str:
        if self.mismatches:
            return (
                f"MISMATCH at event {self.first_mismatch}: {self.message}"
                f" ({self.mismatches} of {self.events} events; {self.reserved} bytes reserved,"
                f" {self.reserved_recorded} recorded){self._hint()}"
            )
        if not self.exact:
            return (
                f"MISMATCH at the end: {self.reserved} bytes reserved, but"
                f" {self.reserved_recorded} recorded{self._hint()}"
            )
        inferred = f", {self.inferred_ends} block ends inferred" if self.inferred_ends else ""
        return (
            f"EXACT: {self.events} events, {self.allocs} allocations and {self.segment_allocs} new"
            f" segments as predicted, {self.reserved} bytes reserved at the end{inferred}"
        )

    def _hint(self) -> str:
        return f"; it would be exact with the settings {self.settings}" if self.settings else ""


def check_exact(snapshot: Snapshot, settings: TorchSettings | None = None) -> ExactResult:
    """Replays a snapshot through `TorchBlocks`; `settings` replace those that it names.

    The requests, the frees and what was given back to the driver are taken from the recording; each
    address, and when a new segment is needed and how large it is, are predicted.
    A snapshot that tells no settings was made with torch's defaults. If these are not exact, others
    that fit the sizes of its blocks are tried, to name them in the result.
    A recording whose events do not lead to its segments is a mismatch, too. Raises
    `vmm.errors.Unsupported` for expandable segments and `vmm.errors.Invalid` for unknown settings.
    """
    if settings is not None:
        return _check(snapshot, settings)
    result = _check(snapshot, TorchSettings.from_snapshot(snapshot.settings))
    if not result.exact and not snapshot.settings:
        tries = _MAX_EVENTS // (len(snapshot) + 1)
        for text in islice(candidates(snapshot), tries):
            if _check(snapshot, TorchSettings.from_text(text)).exact:
                result.settings = text
                break
    return result


def _check(snapshot: Snapshot, settings: TorchSettings) -> ExactResult:
    result = ExactResult(len(snapshot), snapshot.reserved)
    try:
        layout = starting_layout(snapshot, settings)
    except InconsistentError as error:
        result.mismatches, result.first_mismatch = 1, error.event
        result.message = str(error)
        return result
    longer: dict[int, int] = {}
    for _ in range(_MAX_PASSES):
        known = sum(longer.values())
        replay = ExactReplay(snapshot, settings, layout, longer)
        replay.run()
        # What was learned on the way must hold from the first event on: once more with it.
        if sum(longer.values()) == known:
            break
    for event, text in replay.mismatches[:1]:
        result.first_mismatch, result.message = event, text
    result.mismatches = len(replay.mismatches)
    result.allocs, result.segment_allocs = replay.allocs, replay.segment_allocs
    result.reserved = replay.model.reserved + replay.foreseen
    result.same_layout = replay.same_layout()
    result.inferred_ends, result.releases = len(longer), replay.releases
    return result
