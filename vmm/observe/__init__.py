# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Seeing memory: recordings, regions, summaries and exports. The functions are in `api`."""
