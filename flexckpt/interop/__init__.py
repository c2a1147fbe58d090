# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Bridges to other packages, which are imported on first use."""
