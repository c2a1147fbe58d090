# SPDX-License-Identifier: Apache-2.0
# Copyright the paddle-on-torch authors
"""Models this small are faster on one thread, and quiet without the progress of transformers."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
