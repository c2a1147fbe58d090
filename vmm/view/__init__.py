# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The viewer: a recording as one HTML page, or as text. ``python -m vmm view FILE``."""
