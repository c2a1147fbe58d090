# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""What flexckpt is compared with, called as its users call it."""
