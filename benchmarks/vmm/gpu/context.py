# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What a check is given, and how it says that it failed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class FailedError(Exception):
    """The thing checked is not so. The text is one sentence."""


class SkippedError(Exception):
    """The check cannot be made here. The text says what is missing."""


@dataclass(frozen=True)
class Context:
    rehearse: bool  # on the host driver, without a GPU
    seconds: float  # that the check may take
    folder: Path  # for files that outlive the check
