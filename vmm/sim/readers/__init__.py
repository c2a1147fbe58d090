# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Readers of other tools' memory traces, one file per format; `read_any` finds the right one."""

from vmm.sim.readers.any import FORMATS, read_any, read_either, read_snapshot

__all__ = ["FORMATS", "read_any", "read_either", "read_snapshot"]
