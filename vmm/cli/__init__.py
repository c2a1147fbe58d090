# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The command line: a module per command, with ``add_arguments(parser)`` and ``run(arguments)``."""
