# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Events of long runs on disk, in chunks that are whole or not there.

A spool is a folder: ``events-00000000.npy``, ... with the events in order, and ``tables.json`` with
the names that they use. It can be read after a crash, too.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from vmm.errors import FormatError, Invalid
from vmm.observe.events import EVENT, Events, no_events
from vmm.sim.atomic_file import new_file

FORMAT = "vmm-spool 1"


class Spool:
    """Appends chunks of events to a folder, which must be empty or new."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise Invalid(f"spool: the folder must be empty, but {self.folder} is not")
        self._chunks = 0
        self._anew: list[int] = []

    def append(self, events: Events, tables: dict[str, Any]) -> None:
        """Writes the tables, then the events that use them."""
        with new_file(self.folder / "tables.json") as file:
            file.write(json.dumps({"format": FORMAT, "anew": self._anew, **tables}).encode())
        with new_file(self.folder / f"events-{self._chunks:08}.npy") as file:
            np.save(file, events, allow_pickle=False)
        self._chunks += 1

    def begin_anew(self) -> None:
        """Events are missing before the next chunk, so `read` leaves out the chunks so far."""
        self._anew.append(self._chunks)


def read(folder: str | os.PathLike[str]) -> tuple[Events, dict[str, Any]]:
    """The events of a spool since the last gap, and its tables.

    Raises `vmm.errors.FormatError`, OSError.
    """
    path = Path(folder)
    parts = [no_events()]
    for file in sorted(path.glob("events-*.npy")):
        try:
            part = np.load(file, allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise FormatError(f"{file}: not a chunk of events: {error}") from None
        if part.dtype != EVENT or part.ndim != 1:
            raise FormatError(f"{file}: holds {part.dtype}, not events")
        parts.append(part)
    tables: dict[str, Any] = {}
    try:
        tables = json.loads((path / "tables.json").read_bytes())
    except FileNotFoundError:
        if len(parts) > 1:
            raise FormatError(f"{path}: has events but no tables.json") from None
    except ValueError as error:
        raise FormatError(f"{path / 'tables.json'}: not JSON: {error}") from None
    if len(parts) > 1 and tables.get("format") != FORMAT:
        raise FormatError(f'{path / "tables.json"}: has no "format": "{FORMAT}"')
    anew = tables.get("anew", [])
    if not isinstance(anew, list) or not all(type(chunk) is int for chunk in anew):
        raise FormatError(
            f"{path / 'tables.json'}: anew must be numbers of chunks, but is {anew!r}"
        )
    # The tables are written before the chunk: the last one may be missing.
    start = max((chunk for chunk in anew if 0 <= chunk < len(parts) - 1), default=0)
    return np.concatenate([no_events(), *parts[1 + start :]]), tables
