# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Files: a reader per layout, writers, ranged reads, the atomic commit."""
