# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m flexckpt``."""

import sys

from flexckpt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
