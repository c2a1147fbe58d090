# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Allocators as models: where they place requests and what they ask of the driver."""
