# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Opens any supported file for the viewer."""

from __future__ import annotations

import os
from pathlib import Path

from vmm.errors import FormatError
from vmm.view.from_trace import from_snapshot, from_trace
from vmm.view.recording import Recording
from vmm.view.window import cut, parse_range


def open_recording(
    path: str | os.PathLike[str], range_text: str | None = None, device: int | None = None
) -> Recording:
    """The recording in a file, or the part ``A:B`` of it (see `vmm.view.window.parse_range`).

    Raises `vmm.errors.FormatError` for a file that is not understood, `Invalid` for a bad range.
    """
    recording = _read(path, Path(path).name, device)
    if range_text is None:
        return recording
    return cut(recording, *parse_range(range_text, recording))


def _read(path: str | os.PathLike[str], name: str, device: int | None) -> Recording:
    from vmm.sim import trace_file
    from vmm.sim.readers.any import read_any, read_snapshot

    try:
        own = trace_file.is_trace(path)
    except (FormatError, EOFError):
        own = False
    if own:
        return from_trace(read_any(path, device=device), name)
    try:
        return from_snapshot(read_snapshot(path, device=device), name)
    except FormatError:
        # A trace of requests in the format of another tool, or damaged: then this says so.
        return from_trace(read_any(path, device=device), name)
