# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The command line: a module per command, each with ``add_to`` (its arguments) and ``run``."""
