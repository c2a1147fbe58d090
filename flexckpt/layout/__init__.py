# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Layouts: what a process holds of a tensor, a model or an optimizer, as shards."""
