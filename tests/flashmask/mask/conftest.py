# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Random tests try the same examples every time, and may be slow on a busy machine."""

from hypothesis import settings

settings.register_profile("mask", deadline=None, derandomize=True)
settings.load_profile("mask")
