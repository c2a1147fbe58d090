# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""One script per question; peers run interleaved in the same process, medians are reported."""
