# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Bridges to other libraries. Each module needs its library and says so when it is missing."""
