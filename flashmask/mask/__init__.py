# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The geometry of column-wise masks: build, lower, combine, convert and inspect them.

Imports torch only.
"""
