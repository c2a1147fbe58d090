# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The parts of `examples/train_packed_lm.py`, one idea per file."""
