# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The viewer: a recording as one HTML page, or as text. ``python -m vmm view FILE``.

``open_recording`` reads any supported file, ``from_trace`` takes a trace that is in memory (such as
``vmm.record``'s), ``write_page`` and ``print_recording`` show them; with two, they compare.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "from_snapshot": "vmm.view.from_trace",
    "from_trace": "vmm.view.from_trace",
    "open_recording": "vmm.view.open_file",
    "print_diff": "vmm.view.text",
    "print_recording": "vmm.view.text",
    "write_page": "vmm.view.page_file",
}

__all__ = [
    "from_snapshot",
    "from_trace",
    "open_recording",
    "print_diff",
    "print_recording",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'vmm.view' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value
