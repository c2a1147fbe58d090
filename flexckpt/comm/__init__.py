# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Several processes: groups, messages, and what happens when a rank fails."""
