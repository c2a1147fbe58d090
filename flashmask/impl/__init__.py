# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Implementations of the ops. They never import one another."""
