# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Parts of the fragmentation benchmark."""
