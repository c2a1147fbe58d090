# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""PaddlePaddle, in a Python of its own."""
