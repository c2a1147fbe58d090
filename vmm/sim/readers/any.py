# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Tells the format of a file by its content, never by its name."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

from vmm.errors import FormatError, Invalid
from vmm.sim import trace_file
from vmm.sim.readers import (
    chrome_trace,
    content,
    paddle_vlog,
    rmm,
    safe_pickle,
    stalloc,
    torch_lite,
)
from vmm.sim.readers.torch_snapshot import from_torch
from vmm.sim.snapshot import Snapshot
from vmm.sim.trace import Trace

FORMATS = (
    "vmm-trace",
    "torch snapshot (pickle or JSON)",
    "torch-snapshot-lite (JSON)",
    "torch profiler (JSON)",
    "RMM log (CSV)",
    "STAlloc trace (text)",
    "Paddle log (text)",
)


def read_any(path: str | os.PathLike[str], *, device: int | None = None) -> Trace:
    """Reads any of `FORMATS`, also inside gzip or a zip with one file.

    `device` chooses where the file has several. Raises FormatError naming the file and what is
    wrong with it, and OSError.
    """
    read = read_either(path, device=device)
    try:
        return read if isinstance(read, Trace) else read.to_trace()
    except Invalid as error:
        raise _named(path, error) from None


def read_snapshot(path: str | os.PathLike[str], *, device: int | None = None) -> Snapshot:
    """Reads a torch snapshot with its segments. Raises as `read_any`, also for other formats."""
    read = None if _is_own(path) else read_either(path, device=device)
    if not isinstance(read, Snapshot):
        raise FormatError(
            f"{os.fspath(path)}: this is a trace of requests, not a torch snapshot with segments"
        )
    return read


def read_either(path: str | os.PathLike[str], *, device: int | None = None) -> Trace | Snapshot:
    """Reads a torch snapshot with all it has, any other format as a trace. Raises as `read_any`."""
    try:
        if _is_own(path):
            _refuse_choice(device)
            return trace_file.read(path)
        return _read(content.load(path), Path(path).name, device)
    except (FormatError, Invalid) as error:
        raise _named(path, error) from None


def _is_own(path: str | os.PathLike[str]) -> bool:
    """Whether it is a vmm-trace: those are read in pieces, however long they are."""
    try:
        return trace_file.is_trace(path)
    except (FormatError, EOFError):
        return False


def _read(data: bytes, name: str, device: int | None) -> Trace | Snapshot:
    if data.startswith(b"\x80"):
        return from_torch(safe_pickle.loads(data), device=device, source=f"torch snapshot {name}")
    if trace_file.is_trace_content(data[: 1 << 16]):
        _refuse_choice(device)
        return trace_file.read_from(io.BytesIO(data))
    if data[:4096].lstrip().startswith((b"{", b"[")):
        return _read_json(_parsed(data), name, device)
    if rmm.matches(data):
        _refuse_choice(device)
        return rmm.read(data)
    if paddle_vlog.matches(data):
        return paddle_vlog.read(data, device)
    if stalloc.matches(data):
        _refuse_choice(device)
        return stalloc.read(data)
    raise FormatError(f"this is none of the formats that are read: {', '.join(FORMATS)}")


def _named(path: str | os.PathLike[str], error: Exception) -> FormatError:
    text, name = str(error), os.fspath(path)
    return FormatError(text if text.startswith(f"{name}: ") else f"{name}: {text}")


def _refuse_choice(device: int | None) -> None:
    if device is not None:
        raise FormatError(f"device {device} was chosen, but this format names no devices")


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"this is not JSON: {str(error)[:200]}") from None


def _read_json(data: Any, name: str, device: int | None) -> Trace | Snapshot:
    if chrome_trace.matches(data):
        return chrome_trace.read(data, device)
    if isinstance(data, dict) and "segments_at_end" in data:
        return torch_lite.from_lite(data, device=device, source=f"torch snapshot {name}")
    if isinstance(data, list) or "segments" in data:
        return from_torch(data, device=device, source=f"torch snapshot {name}")
    raise FormatError(
        f"this JSON is of no format that is read: it has the keys {str(list(data)[:8])[:200]}"
    )
