# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a run of the benchmarks is told."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """Size of the data in bytes, number of timed rounds, number of ranks, where files may go."""

    size: int
    rounds: int
    workdir: Path
    ranks: int = 2

    def to_json(self) -> str:
        return json.dumps({**dataclasses.asdict(self), "workdir": str(self.workdir)})

    @classmethod
    def from_json(cls, text: str) -> Settings:
        fields = json.loads(text)
        return cls(**{**fields, "workdir": Path(fields["workdir"])})


UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def parse_size(text: str) -> int:
    """Bytes of "64MiB" or "1.5GiB"."""
    for unit in ("KiB", "MiB", "GiB", "B"):
        if text.endswith(unit):
            return int(float(text.removesuffix(unit)) * UNITS[unit])
    raise ValueError(f"size must end in one of {', '.join(UNITS)}, not be {text!r}")
