# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""The public functions, one file each. A folder of their own, lest a module hide its function."""
