# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Keeps the cyclic garbage collector still while many small objects are made that all stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_gc() -> Iterator[None]:
    """No collections inside the block; they double the time of a plan of many tensors."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
