# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""``python -m vmm``."""

import sys

from vmm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
