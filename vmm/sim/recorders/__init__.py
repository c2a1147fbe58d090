# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Traces of real programs: what the profiler saw, or sizes without any memory."""
