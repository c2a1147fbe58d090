# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""From a source index, targets and a program to copies, readers and messages. Integers only."""
