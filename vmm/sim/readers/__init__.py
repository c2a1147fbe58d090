# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Readers of other tools' memory traces, one file per format."""
