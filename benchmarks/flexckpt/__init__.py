# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Checkpoints loaded, saved and converted: flexckpt beside what else does it, in the same run."""
